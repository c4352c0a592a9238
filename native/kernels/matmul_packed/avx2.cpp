// AVX2 with FMA and F16C.
#include "matmul_packed.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "packed/half.h"
#include "packed/layout.h"

namespace {

using namespace taximeter;

#include "formats.inc"

constexpr int64_t kRowsAtOnce = 128;

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline __m256 load_halves(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline __m256 load_signed_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

#include "quantized_avx2.inc"

// Feature i of eight rows of a float format.
template <PackedFormat F>
inline __m256 weights(const uint8_t* tile, int64_t i, int half) {
    if constexpr (F == kPackedF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(tile + 64 * i + 32 * half));
    if constexpr (F == kPackedF16) return load_halves(tile + 32 * i + 16 * half);
    const __m256i pairs = load(tile + 64 * (i / 2) + 32 * half);
    return _mm256_castsi256_ps(i % 2 ? _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000)))
                                     : _mm256_slli_epi32(pairs, 16));
}

// R rows against T tiles: enough sums at a time to hide what a fused multiply-add takes.
template <PackedFormat F, int R, int T>
inline void float_tiles(const PackedMatrix* w, const float* x, int64_t x_stride, int64_t tile, float* y, int64_t y_stride) {
    __m256 acc[R][T][2];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) acc[r][t][0] = acc[r][t][1] = _mm256_setzero_ps();
    const uint8_t* from = tile_of(w, tile);
    for (int64_t i = 0; i < w->k; ++i)
        for (int t = 0; t < T; ++t) {
            const uint8_t* tile_data = from + t * w->tile_bytes;
            const __m256 first = weights<F>(tile_data, i, 0), second = weights<F>(tile_data, i, 1);
            for (int r = 0; r < R; ++r) {
                const __m256 value = _mm256_set1_ps(x[r * x_stride + i]);
                acc[r][t][0] = _mm256_fmadd_ps(first, value, acc[r][t][0]);
                acc[r][t][1] = _mm256_fmadd_ps(second, value, acc[r][t][1]);
            }
        }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t)
            put(acc[r][t], y + r * y_stride + (tile + t) * kTileRows, columns_of(w, tile + t));
}

template <PackedFormat F, int R, int T>
inline void float_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t tile_begin, int64_t tile_end,
                       float* y, int64_t y_stride) {
    const float* from = x->f32 + row * x->f32_stride;
    y += row * y_stride;
    int64_t tile = tile_begin;
    for (; tile + T <= tile_end; tile += T) float_tiles<F, R, T>(w, from, x->f32_stride, tile, y, y_stride);
    for (; tile < tile_end; ++tile) float_tiles<F, R, 1>(w, from, x->f32_stride, tile, y, y_stride);
}

template <PackedFormat F>
void multiply_floats(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                     int64_t tile_end, float* y, int64_t y_stride, Working&) {
    int64_t row = row_begin;
    if (row_end - row >= 6)
        for (int64_t tile = tile_begin; tile < tile_end; ++tile)  // a tile stays in cache while rows pass by
            for (row = row_begin; row + 6 <= row_end; row += 6) float_rows<F, 6, 1>(w, x, row, tile, tile + 1, y, y_stride);
    switch (row_end - row) {
        case 1: return float_rows<F, 1, 4>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 2: return float_rows<F, 2, 2>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 3: return float_rows<F, 3, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 4: return float_rows<F, 4, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 5: return float_rows<F, 5, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
    }
}

typedef void (*Multiply)(const PackedMatrix*, const PreparedRows*, int64_t, int64_t, int64_t, int64_t, float*, int64_t,
                         Working&);
constexpr Multiply kMultiply[kPackedFormats] = {
    multiply_floats<kPackedF32>, multiply_floats<kPackedF16>, multiply_floats<kPackedBF16>, multiply_codes<kPackedQ4_0>,
    multiply_codes<kPackedQ4_1>, multiply_codes<kPackedQ5_0>, multiply_codes<kPackedQ5_1>,  multiply_codes<kPackedQ8_0>,
    multiply_codes<kPackedQ4_K>, multiply_codes<kPackedQ5_K>, multiply_codes<kPackedQ6_K>,
};

// The sum of four 32-bit lanes.
inline int sum_lanes(__m128i a) {
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

// The largest of four vectors of eight and zero. As integers, numbers above zero keep their order, and what is not a number
// comes last.
inline float largest_of(const __m256i (&values)[4]) {
    __m256i most = _mm256_setzero_si256();
    for (const __m256i& some : values) most = _mm256_max_epi32(most, some);
    __m128i largest = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4e));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0xb1));
    return float_of(static_cast<uint32_t>(_mm_cvtsi128_si32(largest)));
}

inline void quantize_group(const float* x, int8_t* q, float* d, int32_t* z, float* s, float* s_half) {
    __m256i values[4], negatives[4];
    for (int i = 0; i < 4; ++i) {
        values[i] = load(x + 8 * i);
        negatives[i] = _mm256_xor_si256(values[i], _mm256_set1_epi32(INT32_MIN));
    }
    const float high = largest_of(values), below = largest_of(negatives);
    // Without z, whichever reaches further; as integers, since what is not a number reaches furthest.
    const uint32_t further = bits_of(high) > bits_of(below) ? bits_of(high) : bits_of(below);
    *d = z != nullptr ? high / 255.0f + below / 255.0f : float_of(further) / 127.0f;
    const bool some = *d > 0.0f && *d < INFINITY;
    const int32_t zero =
        some && z != nullptr ? 128 - static_cast<int32_t>(smaller(_mm_cvtss_si32(_mm_set_ss(below / *d)), 255)) : 0;
    if (z != nullptr) *z = zero;

    const __m256 divisor = _mm256_set1_ps(*d), kept = _mm256_castsi256_ps(_mm256_set1_epi32(some ? -1 : 0));
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) {
        const __m256 scaled = _mm256_and_ps(_mm256_div_ps(_mm256_castsi256_ps(values[i]), divisor), kept);
        whole[i] = _mm256_sub_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(zero));
    }
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3])),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);

    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    const int first = sum_lanes(_mm256_castsi256_si128(sums)) + 16 * zero;
    const int second = sum_lanes(_mm256_extracti128_si256(sums, 1)) + 16 * zero;
    s_half[0] = *d * static_cast<float>(first);
    s_half[1] = *d * static_cast<float>(second);
    *s = *d * static_cast<float>(first + second);
}

}  // namespace

void matmul_packed_avx2(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                        int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    kMultiply[w->format](w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, *static_cast<Working*>(scratch));
}

void quantize_row_avx2(const float* x, int64_t k, int8_t* q, float* d, int32_t* z, float* s, float* s_half) noexcept {
    const int64_t whole = k / kGroup;
    for (int64_t g = 0; g < whole; ++g) quantize_group(x + g * kGroup, q + g * kGroup, d + g, z == nullptr ? z : z + g, s + g, s_half + 2 * g);
    if (k % kGroup) {
        float padded[kGroup] = {};
        memcpy(padded, x + whole * kGroup, static_cast<size_t>(k % kGroup) * sizeof(float));
        quantize_group(padded, q + whole * kGroup, d + whole, z == nullptr ? z : z + whole, s + whole, s_half + 2 * whole);
    }
}

void round_row_avx2(const float* x, int64_t k, uint16_t* out) noexcept {
    for (int64_t i = 0; i < k; i += kGroup, out += kBf16TileValues)
        for (int64_t j = 0; j < kGroup; ++j) out[j] = i + j < k ? float_to_bf16(x[i + j]) : uint16_t{0};
}
