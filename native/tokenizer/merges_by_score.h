// SentencePiece's BPE: of all adjacent pairs that make a piece, merge the one whose piece has the best score.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/text_index.h"

namespace taximeter {

// Immutable once made; used from several threads.
class MergesByScore {
public:
    // `mergeable` and `scores` have a value for each text. A character without a piece becomes the tokens of its bytes,
    // where `of_bytes` has all of them; else `unknown`, or nothing where that is kNone. Throws std::invalid_argument.
    MergesByScore(std::shared_ptr<const Texts> texts, std::span<const bool> mergeable, std::span<const float> scores,
                  std::span<const std::int32_t> of_bytes, std::int32_t unknown);

    // Ids of a text in UTF-8, of less than 2 GiB. Throws std::invalid_argument for a longer one.
    std::vector<std::int32_t> merge(std::string_view text) const;

    // Whether a piece holds `mark` right behind one of the bytes `before`.
    bool any_holds(std::string_view mark, std::string_view before) const;

private:
    TextIndex pieces_;
    std::vector<bool> mergeable_;
    std::vector<float> scores_;
    std::array<std::int32_t, 256> of_bytes_;
    std::int32_t unknown_;
};

}  // namespace taximeter
