#include "limits/kernels.h"

#include "simd/avx2.inc"

namespace {
#include "body.inc"

// Before VNNI a product of bytes takes three steps: pairs to 16 bits, pairs of those to 32, and the sum.
inline int64_t int8(int64_t rounds) {
    constexpr int kSums = 10;
    __m256i sums[kSums], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int j = 0; j < kSums; ++j) sums[j] = _mm256_setzero_si256();
    for (int64_t i = 0; i < rounds; ++i) {
        for (int j = 0; j < kSums; ++j) {
            keep_value(a);  // or one product would do for all
            sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    }
    for (int j = 0; j < kSums; ++j) keep_value(sums[j]);
    return rounds * kSums * 32 * 2;
}

}  // namespace

const LimitKernels limits_avx2{read, int8, nullptr, f32};
