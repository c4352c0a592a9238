// Ids by the texts of their tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/texts.h"

namespace taximeter {

constexpr std::int32_t kNone = -1;

// What a hash begins with: drawn at random, so that no file can be made for which everything collides.
std::uint64_t random_seed();
// Every bit of it depends on every bit of `x`.
std::uint64_t mixed(std::uint64_t x) noexcept;

// A hash table with open addressing.
class TextIndex {
public:
    // Of the tokens that `wanted` has true for; of those with equal texts the last one counts, and empty ones not at all.
    TextIndex(std::shared_ptr<const Texts> texts, std::span<const bool> wanted);

    // The id of a token, or kNone.
    std::int32_t find(std::string_view text) const noexcept;
    const Texts& texts() const noexcept { return *texts_; }

private:
    struct Slot {
        std::uint32_t tag;  // of the hash: texts that differ are seldom compared
        std::int32_t id;
    };

    std::uint64_t hash(std::string_view text) const noexcept;

    std::shared_ptr<const Texts> texts_;
    std::vector<Slot> slots_;  // a power of two, at least half of them free
    std::uint64_t seed_;
    std::size_t longest_bytes_ = 0;
};

}  // namespace taximeter
