#include "paged_attention.h"

#include <math.h>
#include <string.h>

#include "simd/avx2.inc"
#include "state.h"
#include "view.h"

namespace {

constexpr int kLinesTogether = 4, kGroupsTogether = 1, kVectorsTogether = 2;

inline Vec low_halves(Vec raw) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(raw), 16)); }
inline Vec high_halves(Vec raw) {
    return _mm256_and_ps(raw, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

// Bytes as bf16, which holds them exactly; `count` is a multiple of 32.
inline void widen_bytes(const char* bytes, int64_t count, uint16_t* out) {
    const auto eight = [](const char* p) {
        const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(wide)), 16);
    };
    for (int64_t i = 0; i < count; i += 16) {
        const __m256i packed = _mm256_packus_epi32(eight(bytes + i), eight(bytes + i + 8));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
}

#include "products.inc"
#include "panels.inc"
#include "body.inc"

}  // namespace

void paged_attention_avx2(const PagedAttention* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                          int64_t span_begin, int64_t span_end, float* partial, void* scratch) noexcept {
    const auto body = job->format == kKVF32 ? attention_body<InVectors<CacheF32>>
                      : job->format == kKVBF16 && InPanels::fits(job, row_begin, row_end)
                          ? attention_body<InPanels>
                          : attention_body<InVectors<CacheBF16>>;
    body(job, row_begin, row_end, kv_head, span_begin, span_end, partial, scratch);
}

void kv_put_avx2(const PagedAttention* job, int64_t slot, int64_t kv_head, const float* k, const float* v) noexcept {
    put_body(job, slot, kv_head, k, v);
}
