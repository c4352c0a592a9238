#include "decoder/workspace.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "decoder/decoder.h"

namespace taximeter {
namespace {

constexpr std::int64_t round_up(std::int64_t a, std::int64_t to) { return (a + to - 1) / to * to; }

Memory room(std::int64_t count, std::size_t size) {
    return Memory(static_cast<std::size_t>(count) * size, Memory::Pages::huge);
}

}  // namespace

const std::vector<const char*>& phase_names() {
    static const std::vector<const char*> names{"rows",          "query, key, value", "rotation and cache write", "attention",
                                                "attention out", "gate and up",       "down",                     "head"};
    return names;
}

void PreparedBuffer::resize(std::int64_t rows, std::int64_t k) {
    const std::int64_t padded = round_up(k, kGroup);
    q = room(rows * padded, sizeof(std::int8_t));
    d = room(rows * padded / kGroup, sizeof(float));
    z = room(rows * padded / kGroup, sizeof(std::int32_t));
    s = room(rows * padded / kGroup, sizeof(float));
    s_half = room(rows * padded / (kGroup / 2), sizeof(float));
    bf16 = room(round_up(rows, kBf16TileRows) * padded, sizeof(std::uint16_t));
}

PreparedRows PreparedBuffer::view(std::int64_t rows, std::int64_t k, const float* f32, std::int64_t f32_stride,
                                   bool zeros) const {
    return {rows, k, q.as<std::int8_t>(), d.as<float>(), zeros ? z.as<std::int32_t>() : nullptr, s.as<float>(), s_half.as<float>(),
            f32, f32_stride, bf16.as<std::uint16_t>(), nullptr};
}

void RotaryTable::reach(std::int64_t position, const std::vector<double>& turns) {
    if (position < positions_) return;
    half_ = static_cast<std::int64_t>(turns.size());
    const auto wanted = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(512, position + 1))));
    cos_.resize(static_cast<std::size_t>(wanted * half_));  // what throws leaves the positions that there were
    sin_.resize(cos_.size());
    for (std::int64_t at = positions_; at < wanted; ++at)
        for (std::int64_t i = 0; i < half_; ++i) {
            const double angle = static_cast<double>(at) * turns[static_cast<std::size_t>(i)];
            cos_[static_cast<std::size_t>(at * half_ + i)] = static_cast<float>(std::cos(angle));
            sin_[static_cast<std::size_t>(at * half_ + i)] = static_cast<float>(std::sin(angle));
        }
    positions_ = wanted;
}

void Workspace::reach(std::int64_t wanted, const DecoderShape& shape) {
    if (wanted <= rows) return;
    const std::int64_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
    rows = 0;  // what follows may throw half way
    x = room(wanted * shape.hidden, sizeof(float));
    normed = room(wanted * shape.hidden, sizeof(float));
    heads = room(wanted * (queries + 2 * keys), sizeof(float));
    attended = room(wanted * queries, sizeof(float));
    product = room(wanted * shape.hidden, sizeof(float));
    gated = room(wanted * shape.ff, sizeof(float));
    best = room(wanted, sizeof(std::uint64_t));
    narrow.resize(wanted, std::max(shape.hidden, queries));
    wide.resize(wanted, shape.ff);
    rows = wanted;
}

void Workspace::reach_private(int threads, std::int64_t wanted, const DecoderShape& shape) {
    const auto count = static_cast<std::size_t>(threads);
    if (own.size() >= count && own_rows >= wanted) return;
    own_rows = 0;
    own.clear();
    own.resize(count);
    for (Private& one : own) {
        one.x = room(wanted * shape.hidden, sizeof(float));
        one.normed = room(wanted * shape.hidden, sizeof(float));
        one.prepared.resize(wanted, std::max(shape.hidden, shape.heads * shape.head_dim));
    }
    next_x = room(wanted * shape.hidden, sizeof(float));
    own_rows = wanted;
}

}  // namespace taximeter
