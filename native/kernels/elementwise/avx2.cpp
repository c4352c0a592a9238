#include "elementwise.h"

#include <math.h>
#include <string.h>

#define FMA(a, b, c) __builtin_fmaf(a, b, c)

namespace {
#include "body.inc"
}  // namespace

const ElementwiseKernels elementwise_avx2{rms_norm, add, scale, rotate, silu_mul, gelu_tanh_mul, greatest};
