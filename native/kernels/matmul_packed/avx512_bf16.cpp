// AVX-512 with BF16: bf16 weights meet bf16 activations pair by pair.
#include "matmul_packed.h"

#include <immintrin.h>
#include <string.h>

namespace {

constexpr int kRows = 6, kPairBytes = 64, kTilePairs = kGroup / 2, kAheadBytes = 1024;

inline __m512bh load_pair(const uint8_t* p) { return (__m512bh)_mm512_load_si512(p); }
inline __m512bh spread_pair(const uint16_t* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

template <int R, int C>
inline void block(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t tile, float* y, int64_t y_stride) {
    const uint8_t* from = w->data + tile * w->tile_bytes;
    const uint16_t* values[R];
    for (int r = 0; r < R; ++r) values[r] = x->bf16 + bf16_row_at(row + r, w->k);
    __m512 acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < (w->k + 1) / 2; ++pair) {
        const int64_t at = pair / kTilePairs * kBf16TileValues + pair % kTilePairs * 2;
        __m512bh weights[C];
        for (int c = 0; c < C; ++c) {
            const uint8_t* here = from + c * w->tile_bytes + pair * kPairBytes;
            weights[c] = load_pair(here);
            _mm_prefetch(here + kAheadBytes, _MM_HINT_T0);
        }
        for (int r = 0; r < R; ++r) {
            const __m512bh value = spread_pair(values[r] + at);
            for (int c = 0; c < C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], weights[c], value);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            const int64_t output = (tile + c) * kTileRows, left = w->n - output;
            const __mmask16 mask = left >= kTileRows ? 0xffff : static_cast<__mmask16>((1U << left) - 1U);
            _mm512_mask_storeu_ps(y + r * y_stride + output, mask, acc[r][c]);
        }
}

template <int C>
inline void rows(int64_t count, const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t tile, float* y,
                 int64_t y_stride) {
    switch (count) {
        case 1: return block<1, C>(w, x, row, tile, y, y_stride);
        case 2: return block<2, C>(w, x, row, tile, y, y_stride);
        case 3: return block<3, C>(w, x, row, tile, y, y_stride);
        case 4: return block<4, C>(w, x, row, tile, y, y_stride);
        case 5: return block<5, C>(w, x, row, tile, y, y_stride);
        default: return block<kRows, C>(w, x, row, tile, y, y_stride);
    }
}

}  // namespace

void matmul_bf16_avx512_bf16(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                             int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void*) noexcept {
    for (int64_t tile = tile_begin; tile < tile_end; tile += 2)
        for (int64_t row = row_begin; row < row_end; row += kRows) {
            float* to = y + row * y_stride;
            if (tile + 2 <= tile_end)
                rows<2>(row_end - row, w, x, row, tile, to, y_stride);
            else
                rows<1>(row_end - row, w, x, row, tile, to, y_stride);
        }
}
