// The table kernel × level.
#pragma once

#include "cpu_level.h"
#include "kernels/matmul_f32/matmul_f32.h"
#include "kernels/paged_attention_f32/paged_attention_f32.h"

namespace taximeter {

struct KernelTable {
    MatmulF32Kernel matmul_f32;
    PagedAttentionF32Kernel paged_attention_f32;
};

// The kernels of a level, which must not be above cpu_level().
const KernelTable& kernel_table(CpuLevel level) noexcept;

}  // namespace taximeter
