// Text cut into words, as byte-level vocabularies want it before they merge.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace taximeter {

// Disjoint. Unicode's general categories: Lu and Lt, Ll, Lm and Lo, M, N, P; and white space, which is none of these.
enum class CharacterClass : std::uint8_t { other, upper, lower, letter, mark, number, punctuation, space };

// One way to cut; each cuts what the ones before it left, and sees nothing around that. A cut is made before and behind all
// that the regular expression matches.
enum class WordStep : std::uint8_t {
    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)
    gpt2,
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    llama3,
    // The same with \p{N}
    qwen2,
    // [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
    // |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}
    // | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
    tekken,
    number,              // \p{N}
    numbers,             // \p{N}+
    punctuation,         // [\p{P}\$\+<=>\^~\|]+
    three_ascii_digits,  // [0-9][0-9][0-9]
};

std::optional<WordStep> word_step_named(std::string_view name) noexcept;

// Where each word of a text in UTF-8 ends, in bytes; the last one ends with the text.
std::vector<std::uint32_t> word_ends(std::string_view text, std::span<const WordStep> steps);

}  // namespace taximeter
