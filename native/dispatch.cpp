#include "dispatch.h"

namespace taximeter {

const KernelTable& kernel_table(CpuLevel level) noexcept {
    static constexpr KernelTable portable{matmul_packed_portable, Bf16Units::none, nullptr, quantize_row_portable,
                                          round_row_portable, paged_attention_portable, kv_put_portable, &elementwise_portable};
#if TAXIMETER_X86
    static constexpr KernelTable avx2{matmul_packed_avx2, Bf16Units::none, nullptr, quantize_row_avx2,
                                      round_row_avx2, paged_attention_avx2, kv_put_avx2, &elementwise_avx2};
#if TAXIMETER_AVX512
    static constexpr KernelTable avx512{matmul_packed_avx512, Bf16Units::none, nullptr, quantize_row_avx512,
                                        round_row_avx512, paged_attention_avx512, kv_put_avx512, &elementwise_avx512};
    static constexpr KernelTable avx512_bf16{matmul_packed_avx512, Bf16Units::bf16_weights, matmul_bf16_avx512_bf16,
                                             quantize_row_avx512, round_row_avx512, paged_attention_avx512_bf16,
                                             kv_put_avx512_bf16, &elementwise_avx512};
#if TAXIMETER_AMX
    static constexpr KernelTable amx{matmul_packed_amx, Bf16Units::bf16_and_quantized_weights, matmul_bf16_amx,
                                     quantize_row_avx512, round_row_avx512, paged_attention_amx, kv_put_amx,
                                     &elementwise_avx512};
    if (level == CpuLevel::amx) return amx;
#endif
    if (level >= CpuLevel::avx512_bf16) return avx512_bf16;
    if (level == CpuLevel::avx512) return avx512;
#endif
    if (level == CpuLevel::avx2) return avx2;
#endif
    (void)level;
    return portable;
}

}  // namespace taximeter
