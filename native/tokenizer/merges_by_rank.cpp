#include "tokenizer/merges_by_rank.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "tokenizer/merging.h"

namespace taximeter {
namespace {

constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

std::uint64_t pair_of(std::int32_t left, std::int32_t right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

MergesByRank::MergesByRank(std::shared_ptr<const Texts> texts, std::span<const bool> mergeable, const Texts& merges,
                           std::span<const std::int32_t> of_bytes, const Texts& alphabet, std::vector<WordStep> steps,
                           bool whole_words)
    : steps_(std::move(steps)) {
    if (of_bytes.size() != of_bytes_.size() || alphabet.size() != of_bytes_.size())
        throw std::invalid_argument("a token for each byte, or none, and its name are needed");
    if (merges.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        throw std::invalid_argument("too many merges");
    std::copy(of_bytes.begin(), of_bytes.end(), of_bytes_.begin());
    TextIndex tokens(std::move(texts), mergeable);
    ranks_.assign(std::bit_ceil(merges.size() + merges.size() / 2 + 2), {kNoPair, 0, kNone});
    std::string whole;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const std::string_view merge = merges[rank];
        const std::size_t cut = merge.find(' ', 1);  // the space between is never the first character
        if (cut == std::string_view::npos) continue;
        const std::string_view first = merge.substr(0, cut), second = merge.substr(cut + 1);
        const std::int32_t left = tokens.find(first), right = tokens.find(second);
        if (left == kNone || right == kNone) continue;
        whole.assign(first).append(second);
        const std::int32_t id = tokens.find(whole);
        if (id != kNone) ranks_[slot(left, right)] = {pair_of(left, right), static_cast<std::int32_t>(rank), id};
    }
    if (whole_words) {
        words_.emplace(std::move(tokens));
        alphabet_.emplace(alphabet);
    }
}

std::vector<std::int32_t> MergesByRank::merge(std::string_view text) const {
    if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        throw std::invalid_argument("a text of more than 2 GiB");
    using Parts = Merging<std::int32_t>;
    Parts parts;
    std::vector<std::int32_t> ids;
    std::uint32_t begin = 0;
    for (const std::uint32_t end : word_ends(text, steps_)) {
        const std::string_view word = text.substr(begin, end - begin);
        begin = end;
        if (const std::int32_t id = whole_word(word); id != kNone) {
            ids.push_back(id);
            continue;
        }
        parts.clear();
        for (std::size_t at = 0; at < word.size(); ++at) {
            const std::int32_t id = of_bytes_[static_cast<unsigned char>(word[at])];
            if (id != kNone) parts.add(static_cast<std::uint32_t>(at), 1, id);
        }
        parts.run([&](const Parts::Part& left, const Parts::Part& right) -> Parts::Merged {
            const Rank& found = ranks_[slot(left.id, right.id)];
            return {-found.rank, found.id};
        });
        parts.each([&](const Parts::Part& part) { ids.push_back(part.id); });
    }
    return ids;
}

std::size_t MergesByRank::slot(std::int32_t left, std::int32_t right) const noexcept {
    const std::uint64_t pair = pair_of(left, right);
    const std::size_t last = ranks_.size() - 1;
    std::size_t at = mixed(pair ^ seed_) & last;
    while (ranks_[at].pair != pair && ranks_[at].pair != kNoPair) at = (at + 1) & last;
    return at;
}

std::int32_t MergesByRank::whole_word(std::string_view word) const {
    if (!words_) return kNone;
    std::string name;
    for (const char byte : word) name.append((*alphabet_)[static_cast<unsigned char>(byte)]);
    return words_->find(name);
}

}  // namespace taximeter
