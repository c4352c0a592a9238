// The texts of a vocabulary's tokens, one after the other in memory of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace taximeter {

// Strings as a GGUF file stores them: u64 length · bytes, again and again. Gives where each begins, and at last where the
// last one ends; nothing where one would reach past the end, is longer than `longest`, or is not UTF-8.
std::vector<std::int64_t> string_starts(std::span<const std::uint8_t> bytes, std::uint64_t at, std::uint64_t count,
                                        std::uint64_t longest);

bool is_utf8(std::string_view text) noexcept;

class Texts {
public:
    // `starts` as `string_starts` gives them for these bytes. Throws std::invalid_argument for any that it cannot have given.
    Texts(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> starts);

    std::size_t size() const noexcept { return ends_.size() - 1; }
    std::string_view operator[](std::size_t at) const noexcept {
        return {bytes_.data() + ends_[at], ends_[at + 1] - ends_[at]};
    }
    std::size_t longest_bytes() const noexcept { return longest_bytes_; }
    std::size_t longest_characters() const noexcept { return longest_characters_; }

private:
    std::vector<char> bytes_;
    std::vector<std::uint32_t> ends_;  // one more than there are texts: the first is 0
    std::size_t longest_bytes_ = 0, longest_characters_ = 0;
};

}  // namespace taximeter
