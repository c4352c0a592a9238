// The table kernel × level.
#pragma once

#include "cpu_level.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/matmul_packed/matmul_packed.h"
#include "kernels/paged_attention/paged_attention.h"

namespace taximeter {

// Which weights a level has bf16 units for.
enum class Bf16Units { none, bf16_weights, bf16_and_quantized_weights };

struct KernelTable {
    MatmulPackedKernel matmul;
    Bf16Units bf16_units;
    MatmulPackedKernel matmul_bf16;  // null where there are no units
    QuantizeRowKernel quantize_row;
    RoundRowKernel round_row;
    AttentionSpanKernel attention;
    KVPutKernel kv_put;
    const ElementwiseKernels* rows;
};

// The kernels of a level, which must not be above cpu_level().
const KernelTable& kernel_table(CpuLevel level) noexcept;

}  // namespace taximeter
