#include "paged_attention_f32.h"

#include <math.h>

#include "simd/portable.inc"

namespace {
#include "body.inc"
}  // namespace

void paged_attention_f32_portable(const PagedAttentionF32* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                                  float* scratch) noexcept {
    attention_body(job, row_begin, row_end, kv_head, scratch);
}
