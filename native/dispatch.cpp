#include "dispatch.h"

namespace taximeter {

const KernelTable& kernel_table(CpuLevel level) noexcept {
    static constexpr KernelTable portable{matmul_f32_portable, paged_attention_f32_portable};
#if TAXIMETER_X86
    static constexpr KernelTable avx2{matmul_f32_avx2, paged_attention_f32_avx2};
    static constexpr KernelTable avx512{matmul_f32_avx512, paged_attention_f32_avx512};
    if (level == CpuLevel::avx512) return avx512;
    if (level == CpuLevel::avx2) return avx2;
#endif
    (void)level;
    return portable;
}

}  // namespace taximeter
