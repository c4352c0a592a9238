#include "limits/kernels.h"

#include "simd/portable.inc"

namespace {
#include "body.inc"
}  // namespace

const LimitKernels limits_portable{read, nullptr, nullptr, f32};
