#include "limits/kernels.h"

#include "simd/avx512.inc"

namespace {
#include "body.inc"
#include "int8_avx512.inc"
}  // namespace

const LimitKernels limits_avx512{read, int8_vnni, nullptr, f32};
