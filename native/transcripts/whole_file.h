// A transcript from a place on to its end, read and looked through without Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "transcripts/usual_lines.h"

namespace taximeter {

// Texts of our own, for as long as this lives.
class TextStore {
  public:
    TextStore() = default;
    TextStore(TextStore&&) noexcept = default;
    TextStore& operator=(TextStore&&) noexcept = default;

    std::string_view kept(std::string_view text);

  private:
    std::vector<std::unique_ptr<char[]>> pieces_;
    char* at_ = nullptr;
    std::size_t left_ = 0;
};

struct FoundCall {
    std::string_view stamp;  // of the earliest of its lines
    std::string_view message_id;
    std::optional<std::string_view> request_id;
    std::array<std::int64_t, kLeaves> leaves{};
};

// Calls one behind the other that have `common`, and before which place in `FoundFile::calls` they end.
struct FoundRun {
    CommonFields common;
    std::size_t end = 0;
};

struct FoundFile {
    // Whether that is all there is to say: whole lines only, of which those with the mark in them are usual, no message
    // in two places, and nothing that went wrong. Otherwise the rest means nothing.
    bool is_plain = false;
    std::int64_t read_bytes = 0;
    std::int64_t end = 0;         // behind the last line
    std::int64_t last_begin = 0;  // where the lines of the last call begin; `end` where there is no call
    std::vector<FoundCall> calls;
    std::vector<FoundRun> runs;
    TextStore texts;
};

// The file `descriptor` from `offset` on to `size`, where it ended when that was asked for. It is read in blocks of
// `block_bytes` into `room`, which grows with its lines; one of more than `most_line_bytes` is not plain. Does not move the
// file's own place.
FoundFile find_usage_calls(int descriptor, std::int64_t offset, std::int64_t size, std::size_t block_bytes,
                           std::size_t most_line_bytes, std::vector<char>& room);

}  // namespace taximeter
