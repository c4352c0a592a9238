// AVX-512 F, BW, DQ, VL and VNNI.
#include "matmul_packed.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

namespace {

#include "formats_avx512.inc"
#include "quantized_avx512.inc"

// ---- float weights: every feature of 2 tiles and up to six rows is one multiply-add each

constexpr int kFloatRows = 6;

struct WeightsF32 {
    static constexpr int kBytes = 64, kFeatures = 1;  // of one step: sixteen outputs × kFeatures
    static inline void load(const uint8_t* p, __m512 (&w)[1]) { w[0] = _mm512_load_ps(p); }
};
struct WeightsF16 {
    static constexpr int kBytes = 32, kFeatures = 1;
    static inline void load(const uint8_t* p, __m512 (&w)[1]) { w[0] = load_f16(p); }
};
struct WeightsBF16 {
    static constexpr int kBytes = 64, kFeatures = 2;
    static inline void load(const uint8_t* p, __m512 (&w)[2]) {
        const __m512i pair = _mm512_load_si512(p);
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
    }
};

constexpr int kFloatAheadBytes = 1024;

template <class W, int R, int C>
inline void float_block(const PackedMatrix* w, const float* x, int64_t x_stride, int64_t tile, float* y,
                        int64_t y_stride) {
    const uint8_t* from = w->data + tile * w->tile_bytes;
    __m512 acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
    auto step = [&](int64_t k, int features) {
        __m512 weights[C][W::kFeatures];
        for (int c = 0; c < C; ++c) {
            const uint8_t* at = from + c * w->tile_bytes + k / W::kFeatures * W::kBytes;
            W::load(at, weights[c]);
            _mm_prefetch(at + kFloatAheadBytes, _MM_HINT_T0);
        }
        for (int i = 0; i < features; ++i)
            for (int r = 0; r < R; ++r) {
                const __m512 value = _mm512_set1_ps(x[r * x_stride + k + i]);
                for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(weights[c][i], value, acc[r][c]);
            }
    };
    int64_t k = 0;
    for (; k + W::kFeatures <= w->k; k += W::kFeatures) step(k, W::kFeatures);
    if (k < w->k) step(k, 1);
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            _mm512_mask_storeu_ps(y + r * y_stride + (tile + c) * kTileRows, outputs_of(w, tile + c), acc[r][c]);
}

template <class W>
inline void float_product(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                          int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride) {
    for (int64_t tile = tile_begin; tile < tile_end; tile += 2)
        for (int64_t row = row_begin; row < row_end; row += kFloatRows) {
            const float* from = x->f32 + row * x->f32_stride;
            float* to = y + row * y_stride;
            with_rows(smaller(row_end - row, kFloatRows), [=]<int R>() {
                if constexpr (R <= kFloatRows) {
                    if (tile + 2 <= tile_end)
                        float_block<W, R, 2>(w, from, x->f32_stride, tile, to, y_stride);
                    else
                        float_block<W, R, 1>(w, from, x->f32_stride, tile, to, y_stride);
                }
            });
        }
}

}  // namespace

void matmul_packed_avx512(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                          int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    switch (w->format) {
        case kPackedF32: return float_product<WeightsF32>(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride);
        case kPackedF16: return float_product<WeightsF16>(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride);
        case kPackedBF16:
            return float_product<WeightsBF16>(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride);
        default:
            return with_format<Quantized>(w->format, w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride,
                                          static_cast<uint8_t*>(scratch));
    }
}

namespace {

// The largest of two vectors and zero, and the largest of their negatives and zero. As integers, numbers above zero keep their
// order, and what is not a number comes last.
struct Ends {
    float high, below, furthest;  // the last is the larger one
    Ends(__m512 a, __m512 b) {
        const __m512i sign = _mm512_set1_epi32(INT32_MIN), a_bits = _mm512_castps_si512(a), b_bits = _mm512_castps_si512(b);
        const __m512i up = _mm512_max_epi32(a_bits, b_bits);
        const __m512i down = _mm512_max_epi32(_mm512_xor_si512(a_bits, sign), _mm512_xor_si512(b_bits, sign));
        // Both at once: one in the lower half, the other in the upper one.
        __m512i both = _mm512_max_epi32(_mm512_shuffle_i64x2(up, down, 0x44), _mm512_shuffle_i64x2(up, down, 0xee));
        both = _mm512_max_epi32(both, _mm512_shuffle_i64x2(both, both, 0xb1));
        both = _mm512_max_epi32(both, _mm512_shuffle_epi32(both, _MM_PERM_BADC));
        both = _mm512_max_epi32(both, _mm512_shuffle_epi32(both, _MM_PERM_CDAB));
        both = _mm512_max_epi32(both, _mm512_setzero_si512());
        const __m128i first = _mm512_castsi512_si128(both), second = _mm512_extracti32x4_epi32(both, 2);
        high = _mm_cvtss_f32(_mm_castsi128_ps(first));
        below = _mm_cvtss_f32(_mm_castsi128_ps(second));
        furthest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(first, second)));
    }
};

}  // namespace

void quantize_row_avx512(const float* x, int64_t k, int8_t* q, float* d, int32_t* z, float* s, float* s_half) noexcept {
    for (int64_t g = 0; g * kGroup < k; ++g) {
        const int64_t left = smaller(k - g * kGroup, kGroup);
        const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << left) - 1U);
        const __m512 a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + g * kGroup);
        const __m512 b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + g * kGroup + 16);
        const Ends ends(a, b);
        const float scale = z != nullptr ? ends.high / 255.0f + ends.below / 255.0f : ends.furthest / 127.0f;
        int32_t zero = 0, sums[2] = {0, 0};
        __m256i bytes = _mm256_setzero_si256();
        if (scale > 0.0f && scale < INFINITY) {
            if (z != nullptr) zero = 128 - static_cast<int32_t>(smaller(_mm_cvtss_si32(_mm_set_ss(ends.below / scale)), 255));
            const auto bytes_of = [scale, zero](__m512 values) {
                const __m512i whole = _mm512_cvtps_epi32(_mm512_div_ps(values, _mm512_set1_ps(scale)));
                return _mm512_cvtsepi32_epi8(_mm512_sub_epi32(whole, _mm512_set1_epi32(zero)));
            };
            bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_of(a)), bytes_of(b), 1);
            // Sums of eight bytes, each 128 more than it is.
            __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
            eights = _mm256_add_epi64(eights, _mm256_shuffle_epi32(eights, 0x4e));
            sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(eights)) + 16 * (zero - 128);
            sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(eights, 1)) + 16 * (zero - 128);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + g * kGroup), bytes);
        d[g] = scale;
        if (z != nullptr) z[g] = zero;
        s[g] = scale * static_cast<float>(sums[0] + sums[1]);
        for (int half = 0; half < 2; ++half) s_half[g * 2 + half] = scale * static_cast<float>(sums[half]);
    }
}

// To nearest even; what is not a number stays so.
static inline __m256i rounded_to_bf16(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 no_number = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, no_number, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

void round_row_avx512(const float* x, int64_t k, uint16_t* out) noexcept {
    for (int64_t i = 0; i < k; i += kGroup, out += kBf16TileValues) {
        const int64_t left = smaller(k - i, kGroup);
        const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << left) - 1U);
        const __m512 a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + i);
        const __m512 b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + i + 16);
        _mm512_storeu_si512(out, _mm512_inserti64x4(_mm512_castsi256_si512(rounded_to_bf16(a)), rounded_to_bf16(b), 1));
    }
}
