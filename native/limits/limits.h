// What this machine can do at most: how fast so many threads read memory, and how many operations they do a second.
#pragma once

#include <cstddef>
#include <optional>

#include "cpu_level.h"

namespace taximeter {

enum class Unit { int8, bf16, f32 };

// Measures for about `seconds`, on threads of its own, and tells the best of several rounds: what the machine does when
// nothing gets in its way. GB are 10⁹ bytes; a multiplication and an addition are two operations.

// Each thread reads its part of `bytes` in huge pages where the system has them, again and again. Throws std::bad_alloc.
double read_gb_per_s(CpuLevel level, int threads, std::size_t bytes, double seconds);

// 10⁹ operations a second on operands that are in registers; nothing where the level has no unit for these numbers.
std::optional<double> gop_per_s(CpuLevel level, Unit unit, int threads, double seconds);

}  // namespace taximeter
