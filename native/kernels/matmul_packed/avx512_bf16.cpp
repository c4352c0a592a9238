// AVX-512 with BF16: bf16 weights meet bf16 activations pair by pair; everything else is avx512's.
#include "matmul_packed.h"

#include <immintrin.h>
#include <string.h>

namespace {

constexpr int kRows = 6, kPairBytes = 64, kAheadBytes = 1024;

inline __m512bh load_pair(const uint8_t* p) { return (__m512bh)_mm512_load_si512(p); }
inline __m512bh spread_pair(const uint16_t* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

template <int R, int C>
inline void block(const PackedMatrix* w, const uint16_t* x, int64_t x_stride, int64_t tile, float* y,
                  int64_t y_stride) {
    const uint8_t* from = w->data + tile * w->tile_bytes;
    __m512 acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < (w->k + 1) / 2; ++pair) {
        __m512bh weights[C];
        for (int c = 0; c < C; ++c) {
            const uint8_t* at = from + c * w->tile_bytes + pair * kPairBytes;
            weights[c] = load_pair(at);
            _mm_prefetch(at + kAheadBytes, _MM_HINT_T0);
        }
        for (int r = 0; r < R; ++r) {
            const __m512bh value = spread_pair(x + r * x_stride + pair * 2);
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
inline void rows(int64_t count, const PackedMatrix* w, const uint16_t* x, int64_t x_stride, int64_t tile, float* y,
                 int64_t y_stride) {
    switch (count) {
        case 1: return block<1, C>(w, x, x_stride, tile, y, y_stride);
        case 2: return block<2, C>(w, x, x_stride, tile, y, y_stride);
        case 3: return block<3, C>(w, x, x_stride, tile, y, y_stride);
        case 4: return block<4, C>(w, x, x_stride, tile, y, y_stride);
        case 5: return block<5, C>(w, x, x_stride, tile, y, y_stride);
        default: return block<kRows, C>(w, x, x_stride, tile, y, y_stride);
    }
}

}  // namespace

void matmul_packed_avx512_bf16(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                               int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride,
                               void* scratch) noexcept {
    if (w->format != kPackedBF16 || x->bf16 == nullptr)
        return matmul_packed_avx512(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
    for (int64_t tile = tile_begin; tile < tile_end; tile += 2)
        for (int64_t row = row_begin; row < row_end; row += kRows) {
            const uint16_t* from = x->bf16 + row * x->bf16_stride;
            if (tile + 2 <= tile_end)
                rows<2>(row_end - row, w, from, x->bf16_stride, tile, y + row * y_stride, y_stride);
            else
                rows<1>(row_end - row, w, from, x->bf16_stride, tile, y + row * y_stride, y_stride);
        }
}

void quantize_row_avx512_bf16(const float* x, int64_t k, int8_t* q, float* d, float* s, float* s_half) noexcept {
    quantize_row_avx512(x, k, q, d, s, s_half);
}

// Not by vcvtneps2bf16, which takes the smallest numbers for zero.
void round_row_avx512_bf16(const float* x, int64_t k, uint16_t* out) noexcept { round_row_avx512(x, k, out); }
