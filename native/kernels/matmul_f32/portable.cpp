#include "matmul_f32.h"

#include <string.h>

#include "simd/portable.inc"

namespace {
#include "body.inc"
}  // namespace

void matmul_f32_portable(const MatmulF32* job, int64_t row_begin, int64_t row_end, int64_t n_begin, int64_t n_end,
                         float* scratch) noexcept {
    matmul_body(job, row_begin, row_end, n_begin, n_end, scratch);
}
