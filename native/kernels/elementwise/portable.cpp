#include "elementwise.h"

#include <math.h>
#include <string.h>

#define FMA(a, b, c) ((a) * (b) + (c))  // rounded twice: this level promises no fused form

namespace {
#include "body.inc"
}  // namespace

const ElementwiseKernels elementwise_portable{rms_norm, add, scale, rotate, silu_mul, gelu_tanh_mul, greatest};
