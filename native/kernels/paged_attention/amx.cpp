#include "paged_attention.h"

#include <math.h>
#include <string.h>

#include "simd/avx512.inc"
#include "state.h"
#include "view.h"

namespace {

constexpr int kLinesTogether = 6, kGroupsTogether = 4, kVectorsTogether = 4;

#include "avx512_halves.inc"
#include "products.inc"
#include "products_bf16.inc"
#include "body.inc"

// Tiles 0 to 3 are sums, 4 and 5 lines, 6 and 7 keys or values. A line's sums depend on that line alone, so the same arithmetic
// serves one row and a whole prompt. What two tiles of lines read once, they load past the nearest cache, which their scores fill.
struct InTiles : RoundedWeights {
    static constexpr int kTile = 16, kTogether = 2 * kTile, kTokenStep = 32;
    static constexpr int kValueCopyBytes = kSpan * kAttentionMaxDim * 2;
    static constexpr int64_t kQueryBytes = kQueryStride * 2, kScoreBytes = kKeyStride * 4, kPartBytes = kDimStride * 4;
    static constexpr int kTileBytes = 1024;

    static bool fits(const PagedAttention* job) { return job->head_dim % 32 == 0; }

    static void begin(int lines, int64_t dim, uint16_t* queries) {
        const int rows = lines < kTile ? lines : kTile;
        for (int line = lines; line % rows != 0; ++line)
            memset(queries + line * kQueryStride, 0, static_cast<size_t>(dim) * sizeof(uint16_t));
        struct alignas(64) {
            uint8_t palette, start_row, zero[14];
            uint16_t row_bytes[16];
            uint8_t rows[16];
        } config = {};
        config.palette = 1;
        for (int tile = 0; tile < 8; ++tile) {
            config.row_bytes[tile] = 64;
            config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
        }
        settle();
        _tile_loadconfig(&config);
    }
    static void end() { _tile_release(); }

    // A step's two groups must lie behind each other.
    static void tidy(const PagedAttention* job, int64_t group_bytes, char* copies, SpanView* view) {
        const Seen seen = view->seen;
        for (int token = seen.from / kTokenStep * kTokenStep; token < seen.to; token += kTokenStep) {
            const char** values = view->values() + token / kTokens;
            const bool whole = token >= seen.from && token + kTokenStep <= seen.to;
            if (whole && values[1] == values[0] + group_bytes) continue;
            for (int half = 0; half < 2; ++half) {
                const int first = token + half * kTokens;
                if (first + kTokens > seen.from && first < seen.to)
                    copy_pairs(values[half], kTokens, seen.from - first, seen.to - first, job->head_dim, copies);
                else
                    memset(copies, 0, static_cast<size_t>(group_bytes));
                values[half] = copies;
                copies += group_bytes;
            }
        }
    }

    static void scores(const uint16_t* queries, int lines, int64_t dim, const char* const* keys, Seen seen, float* out) {
        settle();
        int group = seen.from / kTokens;
        const int end = (seen.to + kTokens - 1) / kTokens;
        const uint16_t* more = queries + kTile * kQueryStride;
        float* out_more = out + kTile * kKeyStride;
        if (lines <= kTile) {
            for (; group + 4 <= end; group += 4) {
                const char* const* four = keys + group;
                clear_sums();
                for (int64_t at = 0; at < dim; at += 32) {
                    _tile_loadd(4, queries + at, kQueryBytes);
                    _tile_loadd(6, four[0] + at * 32, kRowBytes);
                    _tile_dpbf16ps(0, 4, 6);
                    fetch(four[kAhead] + at * 32, kTileBytes);
                    _tile_loadd(7, four[1] + at * 32, kRowBytes);
                    _tile_dpbf16ps(1, 4, 7);
                    fetch(four[1 + kAhead] + at * 32, kTileBytes);
                    _tile_loadd(6, four[2] + at * 32, kRowBytes);
                    _tile_dpbf16ps(2, 4, 6);
                    fetch(four[2 + kAhead] + at * 32, kTileBytes);
                    _tile_loadd(7, four[3] + at * 32, kRowBytes);
                    _tile_dpbf16ps(3, 4, 7);
                    fetch(four[3 + kAhead] + at * 32, kTileBytes);
                }
                _tile_stored(0, out + group * kTokens, kScoreBytes);
                _tile_stored(1, out + (group + 1) * kTokens, kScoreBytes);
                _tile_stored(2, out + (group + 2) * kTokens, kScoreBytes);
                _tile_stored(3, out + (group + 3) * kTokens, kScoreBytes);
            }
            for (; group < end; ++group) {
                _tile_zero(0);
                for (int64_t at = 0; at < dim; at += 32) {
                    _tile_loadd(4, queries + at, kQueryBytes);
                    _tile_loadd(6, keys[group] + at * 32, kRowBytes);
                    _tile_dpbf16ps(0, 4, 6);
                    fetch(keys[group + kAhead] + at * 32, kTileBytes);
                }
                _tile_stored(0, out + group * kTokens, kScoreBytes);
            }
            return;
        }
        for (; group < end; group += 2) {
            // An odd last group stands in for its missing neighbour, whose sums are then written over.
            const char *one = keys[group], *next = keys[group + 1 < end ? group + 1 : group];
            clear_sums();
            for (int64_t at = 0; at < dim; at += 32) {
                _tile_loadd(4, queries + at, kQueryBytes);
                _tile_stream_loadd(6, one + at * 32, kRowBytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(5, more + at, kQueryBytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_stream_loadd(7, next + at * 32, kRowBytes);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, out + group * kTokens, kScoreBytes);
            _tile_stored(1, out + (group + 1) * kTokens, kScoreBytes);
            _tile_stored(2, out_more + group * kTokens, kScoreBytes);
            _tile_stored(3, out_more + (group + 1) * kTokens, kScoreBytes);
        }
    }

    static void mix(const float* scores, int lines, int64_t dim, const char* const* values, Seen seen, float* out) {
        settle();
        const int64_t row_bytes = dim * 4;
        const auto* weights = reinterpret_cast<const uint16_t*>(scores);
        const auto* more = reinterpret_cast<const uint16_t*>(scores + kTile * kKeyStride);
        float* out_more = out + kTile * kDimStride;
        int64_t at = 0;
        for (; lines <= kTile && at + 64 <= dim; at += 64) {
            clear_sums();
            for (int token = seen.from; token < seen.to; token += kTokenStep) {
                const char* v = values[token / kTokens] + at * 4;
                const char* const* ahead = values + token / kTokens + kAhead;
                _tile_loadd(4, weights + token, kScoreBytes);
                _tile_loadd(6, v, row_bytes);
                _tile_dpbf16ps(0, 4, 6);
                fetch_rows(ahead[0] + at * 4, row_bytes, 0);
                _tile_loadd(7, v + 64, row_bytes);
                _tile_dpbf16ps(1, 4, 7);
                fetch_rows(ahead[0] + at * 4, row_bytes, 4);
                _tile_loadd(6, v + 128, row_bytes);
                _tile_dpbf16ps(2, 4, 6);
                fetch_rows(ahead[1] + at * 4, row_bytes, 0);
                _tile_loadd(7, v + 192, row_bytes);
                _tile_dpbf16ps(3, 4, 7);
                fetch_rows(ahead[1] + at * 4, row_bytes, 4);
            }
            _tile_stored(0, out + at, kPartBytes);
            _tile_stored(1, out + at + 16, kPartBytes);
            _tile_stored(2, out + at + 32, kPartBytes);
            _tile_stored(3, out + at + 48, kPartBytes);
        }
        for (; at < dim; at += 32) {
            const bool both = lines > kTile;
            clear_sums();
            for (int token = seen.from; token < seen.to; token += kTokenStep) {
                const char* v = values[token / kTokens] + at * 4;
                _tile_stream_loadd(4, weights + token, kScoreBytes);
                _tile_stream_loadd(6, v, row_bytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_stream_loadd(7, v + 64, row_bytes);
                _tile_dpbf16ps(1, 4, 7);
                if (!both) continue;
                _tile_stream_loadd(5, more + token, kScoreBytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, out + at, kPartBytes);
            _tile_stored(1, out + at + 16, kPartBytes);
            if (both) _tile_stored(2, out_more + at, kPartBytes);
            if (both) _tile_stored(3, out_more + at + 16, kPartBytes);
        }
    }

private:
    // Four rows of 256 bytes: a quarter of what two groups' tiles of values read.
    static void fetch_rows(const char* p, int64_t row_bytes, int first) {
        for (int row = first; row < first + 4; ++row) fetch(p + row * row_bytes, 256);
    }
    static void clear_sums() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    // Tile loads, and that of their shapes, do not tell the compiler which memory they read: all must have been written.
    static void settle() { __asm__ volatile("" ::: "memory"); }
};

}  // namespace

void paged_attention_amx(const PagedAttention* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                         int64_t span_begin, int64_t span_end, float* partial, void* scratch) noexcept {
    const auto body = job->format == kKVF32   ? attention_body<InVectors<CacheF32>>
                      : InTiles::fits(job) ? attention_body<InTiles>
                                           : attention_body<InDots>;
    body(job, row_begin, row_end, kv_head, span_begin, span_end, partial, scratch);
}

void kv_put_amx(const PagedAttention* job, int64_t slot, int64_t kv_head, const float* k, const float* v) noexcept {
    put_body(job, slot, kv_head, k, v);
}
