// A transcript from a place on to its end, read and looked through without Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transcripts/call_names.h"
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
    CallDigest digest{};  // by which the call is known, once all of the file was read
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
    std::int64_t device = 0, inode = 0, size = 0, modified_ns = 0;  // as they were when it was opened
    std::int64_t read_bytes = 0;
    std::int64_t begin = 0;       // where it was read on
    std::int64_t end = 0;         // behind the last line
    std::int64_t last_begin = 0;  // where the lines of the last call begin; `end` where there is no call
    std::string began;            // the first bytes of the file
    std::string before_last;      // the last bytes before `last_begin`
    std::vector<FoundCall> calls;
    std::vector<FoundRun> runs;
    TextStore texts;
};

struct ReadingSizes {
    std::size_t block = 0;        // bytes that are read at a time
    std::size_t most_line = 0;    // a file with a longer line is not plain
    std::size_t began = 0;        // of `FoundFile::began`
    std::size_t before_last = 0;  // of `FoundFile::before_last`
};

// The file at `path` from `offset` on to where it ends as it is opened, read into `room`, which grows with its lines. Calls
// are named by `names`.
FoundFile find_usage_calls(const CallNames& names, const char* path, std::int64_t offset, const ReadingSizes& sizes,
                           std::vector<char>& room);

}  // namespace taximeter
