#include "limits/kernels.h"

#include "simd/avx512.inc"

namespace {
#include "body.inc"
#include "int8_avx512.inc"

inline int64_t bf16_dot(int64_t rounds) {
    __m512 sums[kChains];
    __m512i a = _mm512_set1_epi32(0x3f803f80), b = a;  // pairs of 1.0
    for (int j = 0; j < kChains; ++j) sums[j] = zero();
    for (int64_t i = 0; i < rounds; ++i) {
        for (int j = 0; j < kChains; ++j)
            sums[j] = _mm512_dpbf16_ps(sums[j], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    for (int j = 0; j < kChains; ++j) __asm__ volatile("" : "+v"(sums[j]));
    return rounds * kChains * 32 * 2;
}

}  // namespace

const LimitKernels limits_avx512_bf16{read, int8_vnni, bf16_dot, f32};
