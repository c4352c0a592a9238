#include "tokenizer/text_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

namespace taximeter {

std::uint64_t random_seed() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

std::uint64_t mixed(std::uint64_t x) noexcept {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

TextIndex::TextIndex(std::shared_ptr<const Texts> texts, std::span<const bool> wanted)
    : texts_(std::move(texts)), seed_(random_seed()) {
    if (wanted.size() != texts_->size()) throw std::invalid_argument("a choice for each text is needed");
    const auto count = static_cast<std::size_t>(std::count(wanted.begin(), wanted.end(), true));
    slots_.assign(std::bit_ceil(2 * count + 2), {0, kNone});
    const std::size_t last = slots_.size() - 1;
    // Hashes first: a slot can then be fetched from memory before its turn comes.
    std::vector<std::uint64_t> keys(wanted.size());
    for (std::size_t id = 0; id < wanted.size(); ++id) {
        if (!wanted[id]) continue;
        const std::string_view text = (*texts_)[id];
        longest_bytes_ = std::max(longest_bytes_, text.size());
        keys[id] = hash(text);
    }
    constexpr std::size_t ahead = 16;
    for (std::size_t id = 0; id < wanted.size(); ++id) {
        if (id + ahead < wanted.size()) __builtin_prefetch(&slots_[keys[id + ahead] & last], 1);
        const std::string_view text = (*texts_)[id];
        if (!wanted[id] || text.empty()) continue;
        const auto tag = static_cast<std::uint32_t>(keys[id] >> 32);
        std::size_t at = keys[id] & last;
        while (slots_[at].id != kNone && !(slots_[at].tag == tag && (*texts_)[static_cast<std::size_t>(slots_[at].id)] == text))
            at = (at + 1) & last;
        slots_[at] = {tag, static_cast<std::int32_t>(id)};
    }
}

std::int32_t TextIndex::find(std::string_view text) const noexcept {
    if (text.size() > longest_bytes_) return kNone;
    const std::uint64_t key = hash(text);
    const auto tag = static_cast<std::uint32_t>(key >> 32);
    const std::size_t last = slots_.size() - 1;
    for (std::size_t at = key & last; slots_[at].id != kNone; at = (at + 1) & last)
        if (slots_[at].tag == tag && (*texts_)[static_cast<std::size_t>(slots_[at].id)] == text) return slots_[at].id;
    return kNone;
}

std::uint64_t TextIndex::hash(std::string_view text) const noexcept {
    std::uint64_t hash = seed_ ^ text.size(), eight = 0;
    std::size_t at = 0;
    for (; text.size() - at >= sizeof eight; at += sizeof eight) {
        std::memcpy(&eight, text.data() + at, sizeof eight);
        hash = mixed(hash ^ eight);
    }
    eight = 0;
    if (at < text.size()) std::memcpy(&eight, text.data() + at, text.size() - at);
    return mixed(hash ^ eight);
}

}  // namespace taximeter
