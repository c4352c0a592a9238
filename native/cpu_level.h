// Which instruction sets this processor has and its operating system saves. Knows nothing of kernels.
#pragma once

namespace taximeter {

enum class CpuLevel { portable, avx2, avx512 };

// The highest level that may run here. avx2 stands for AVX2 with FMA; avx512 for F, BW, DQ and VL on top of it.
CpuLevel cpu_level() noexcept;

}  // namespace taximeter
