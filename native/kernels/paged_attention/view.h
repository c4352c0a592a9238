// What a kernel sees of one span's keys and values, before any arithmetic.
#pragma once

#include "paged_attention.h"

namespace {

constexpr int kSpan = kAttentionSpan, kTokens = 16, kGroups = kSpan / kTokens;
constexpr int kRowBytes = 64;  // one step of sixteen keys: a feature in f32, a pair of them in bf16
constexpr int kDimStride = kAttentionMaxDim + 16, kKeyStride = kSpan + 16;  // odd in cache lines, so that lines don't collide
constexpr int kQueryStride = kAttentionMaxDim + 32;  // the same in bf16: half a line would split tile rows
constexpr int kAhead = 4;  // groups: fetched this early, a key has arrived when its turn comes and has not been driven out again

// Keys of a span: from ≤ key < to.
struct Seen {
    int from, to;
};

// Where every sixteen tokens of a span have their keys, then their values, and the next span its first keys: in the order in
// which one row reads them, so that what it will want lies kAhead places further on. A place whose tokens nobody sees
// holds some other part of the cache.
struct SpanView {
    Seen seen;
    const char* places[2 * kGroups + kAhead];

    const char** keys() { return places; }
    const char** values() { return places + kGroups; }
    const char** next() { return places + 2 * kGroups; }
    const char* const* keys() const { return places; }
    const char* const* values() const { return places + kGroups; }
};

inline void fetch(const char* p, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// Copies `tokens` values of bf16 pairs, zeroing those outside from ≤ token < to.
inline void copy_pairs(const char* values, int tokens, int from, int to, int64_t dim, char* out) {
    for (int t = 0; t < tokens; t += 2) {
        const bool low = t >= from && t < to, high = t + 1 >= from && t + 1 < to;
        const uint32_t kept = (low ? 0xffffU : 0U) | (high ? 0xffff0000U : 0U);
        for (int64_t i = 0; i < dim; ++i) {
            uint32_t pair;
            memcpy(&pair, values + (t / 2 * dim + i) * 4, 4);
            pair &= kept;
            memcpy(out + (t / 2 * dim + i) * 4, &pair, 4);
        }
    }
}

}  // namespace
