// Byte-level BPE: text cut into words, and in each the best-ranked pair of neighbours merged until none is left.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/text_index.h"
#include "tokenizer/words.h"

namespace taximeter {

// Immutable once made; used from several threads.
class MergesByRank {
public:
    // `merges` are pairs with a space between, the best first; those of which a part or the whole is not `mergeable` are left
    // out. `of_bytes` are ids of single bytes, or kNone: such a byte becomes nothing. With `whole_words` a word that is a
    // token is not merged: tokens are written in `alphabet`, a character in UTF-8 for each byte. Throws std::invalid_argument.
    MergesByRank(std::shared_ptr<const Texts> texts, std::span<const bool> mergeable, const Texts& merges,
                 std::span<const std::int32_t> of_bytes, const Texts& alphabet, std::vector<WordStep> steps, bool whole_words);

    // Ids of a text in UTF-8, of less than 2 GiB. Throws std::invalid_argument for a longer one.
    std::vector<std::int32_t> merge(std::string_view text) const;

private:
    struct Rank {
        std::uint64_t pair;
        std::int32_t rank, id;
    };

    // Where a pair is in the table, or where it would go.
    std::size_t slot(std::int32_t left, std::int32_t right) const noexcept;
    std::int32_t whole_word(std::string_view word) const;

    std::vector<Rank> ranks_;  // a hash table with open addressing, a power of two in size, a third of it free at least
    std::uint64_t seed_ = random_seed();
    std::array<std::int32_t, 256> of_bytes_;
    std::vector<WordStep> steps_;
    std::optional<TextIndex> words_;
    std::optional<Texts> alphabet_;
};

}  // namespace taximeter
