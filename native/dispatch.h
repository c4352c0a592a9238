// The table kernel × level.
#pragma once

#include "cpu_level.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/matmul_packed/matmul_packed.h"
#include "kernels/paged_attention/paged_attention.h"

namespace taximeter {

struct KernelTable {
    MatmulPackedKernel matmul;
    QuantizeRowKernel quantize_row;
    RoundRowKernel round_row;
    bool rounds_bf16;  // bf16 weights are multiplied with activations rounded to bf16, in units made for it
    AttentionSpanKernel attention;
    KVPutKernel kv_put;
    const ElementwiseKernels* rows;
};

// The kernels of a level, which must not be above cpu_level().
const KernelTable& kernel_table(CpuLevel level) noexcept;

}  // namespace taximeter
