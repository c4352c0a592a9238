// Which instruction sets this processor has and its operating system saves. Knows nothing of kernels.
#pragma once

namespace taximeter {

//   avx2         AVX2, FMA, F16C
//   avx512       F, BW, DQ, VL and VNNI on top of it (processors with the first four only stay at avx2)
//   avx512_bf16  BF16 on top of that
//   amx          the tile units for int8 and bf16 on top of that
enum class CpuLevel { portable, avx2, avx512, avx512_bf16, amx };

// The highest level that may run here. The first call asks the operating system for the tile units' state.
CpuLevel cpu_level() noexcept;

}  // namespace taximeter
