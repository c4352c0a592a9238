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

}  // namespace

void paged_attention_avx512_bf16(const PagedAttention* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                                 int64_t span_begin, int64_t span_end, float* partial, void* scratch) noexcept {
    const auto body = job->format == kKVF32 ? attention_body<InVectors<CacheF32>> : attention_body<InDots>;
    body(job, row_begin, row_end, kv_head, span_begin, span_end, partial, scratch);
}

void kv_put_avx512_bf16(const PagedAttention* job, int64_t slot, int64_t kv_head, const float* k, const float* v) noexcept {
    put_body(job, slot, kv_head, k, v);
}
