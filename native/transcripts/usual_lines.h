// The lines of a transcript of Claude Code that say how many tokens a call took, found and read.
//
// A line is read here only if nothing about it is unusual: what `importers/usual_lines.py` says is usual. All others are
// found, and left to Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace taximeter {

// A text of the line, as it stands between its quotes; `escaped` where \" \\ or \/ are in it, and no other escape is.
struct RawText {
    std::string_view raw;
    bool escaped = false;

    bool operator==(const RawText&) const = default;
};

// What lines of many calls have in common.
struct CommonFields {
    std::optional<RawText> session, folder, branch, agent;
    bool sidechain = false;
    std::string_view model;
    std::optional<std::string_view> tier, speed, geography;

    bool operator==(const CommonFields&) const = default;
};

constexpr std::size_t kLeaves = 7;

struct FoundLine {
    std::size_t begin = 0, end = 0;  // without the line's end
    // Whether the rest is known. Lines behind it that tell of the same call are in it too.
    bool usual = false;
    std::string_view stamp;  // 2026-10-29T12:00:00.000Z, of the earliest
    std::string_view message_id;
    std::optional<std::string_view> request_id;
    std::array<std::int64_t, kLeaves> leaves{};  // in the order of `plain.LEAVES`, of the line that tells of the most
    CommonFields common;
};

// A stamp's microseconds since 1970.
std::int64_t microseconds_of(std::string_view stamp);

// Whole lines, each with its end: those that hold "usage" and are unusual, or say how many tokens a call took.
std::vector<FoundLine> find_usage_lines(std::string_view lines);

}  // namespace taximeter
