#include "tokenizer/merges_by_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tokenizer/merging.h"

namespace taximeter {
namespace {

// The bytes of the character that begins with this one, in what is known to be UTF-8.
std::uint32_t character_bytes(char lead) noexcept {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

MergesByScore::MergesByScore(std::shared_ptr<const Texts> texts, std::span<const bool> mergeable,
                             std::span<const float> scores, std::span<const std::int32_t> of_bytes, std::int32_t unknown)
    : pieces_(std::move(texts), mergeable),
      mergeable_(mergeable.begin(), mergeable.end()),
      scores_(scores.begin(), scores.end()),
      unknown_(unknown) {
    if (scores.size() != pieces_.texts().size()) throw std::invalid_argument("a score for each text is needed");
    if (of_bytes.size() != of_bytes_.size()) throw std::invalid_argument("a token for each byte, or none, is needed");
    std::copy(of_bytes.begin(), of_bytes.end(), of_bytes_.begin());
    // What is not a number would be neither better nor worse than another.
    for (float& score : scores_)
        if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
}

std::vector<std::int32_t> MergesByScore::merge(std::string_view text) const {
    if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        throw std::invalid_argument("a text of more than 2 GiB");
    using Parts = Merging<float>;
    Parts parts;
    for (std::size_t at = 0; at < text.size();) {
        const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(character_bytes(text[at]), text.size() - at));
        parts.add(static_cast<std::uint32_t>(at), bytes, pieces_.find(text.substr(at, bytes)));
        at += bytes;
    }
    parts.run([&](const Parts::Part& left, const Parts::Part& right) -> Parts::Merged {
        const std::int32_t id = pieces_.find(text.substr(left.at, left.bytes + right.bytes));
        return {id == kNone ? 0.0f : scores_[static_cast<std::size_t>(id)], id};
    });
    std::vector<std::int32_t> ids;
    parts.each([&](const Parts::Part& part) {
        if (part.id != kNone) {
            ids.push_back(part.id);
            return;
        }
        const std::size_t before = ids.size();
        for (const char byte : text.substr(part.at, part.bytes)) {
            const std::int32_t id = of_bytes_[static_cast<unsigned char>(byte)];
            if (id == kNone) {
                ids.resize(before);
                if (unknown_ != kNone) ids.push_back(unknown_);
                return;
            }
            ids.push_back(id);
        }
    });
    return ids;
}

bool MergesByScore::any_holds(std::string_view mark, std::string_view before) const {
    const Texts& texts = pieces_.texts();
    for (std::size_t id = 0; id < texts.size(); ++id) {
        if (!mergeable_[id]) continue;
        const std::string_view text = texts[id];
        if (text.size() <= mark.size()) continue;
        for (std::size_t at = text.find(mark, 1); at < text.size(); at = text.find(mark, at + 1))
            if (before.find(text[at - 1]) != std::string_view::npos) return true;
    }
    return false;
}

}  // namespace taximeter
