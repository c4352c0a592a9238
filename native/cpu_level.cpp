#include "cpu_level.h"

#if TAXIMETER_X86

#include <cpuid.h>

#include <cstdint>

namespace taximeter {
namespace {

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf) noexcept {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

constexpr bool has(std::uint32_t word, int bit) noexcept { return word >> bit & 1U; }

// XCR0: the register state that the operating system saves at a context switch. Readable only where OSXSAVE is set.
// Written as assembly because the intrinsic needs a compiler flag that this file must not have.
std::uint64_t saved_state() noexcept {
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

CpuLevel probe() noexcept {
    const Registers basic = cpuid(1), extended = cpuid(7);
    const bool os_xsave = has(basic.ecx, 27), avx = has(basic.ecx, 28), fma = has(basic.ecx, 12);
    if (!os_xsave || !avx || !fma || !has(extended.ebx, 5)) return CpuLevel::portable;

    constexpr std::uint64_t ymm = 0b110, zmm = 0b1110'0110;
    const std::uint64_t saved = saved_state();
    if ((saved & ymm) != ymm) return CpuLevel::portable;

    const bool f = has(extended.ebx, 16), dq = has(extended.ebx, 17), bw = has(extended.ebx, 30),
               vl = has(extended.ebx, 31);
    return f && dq && bw && vl && (saved & zmm) == zmm ? CpuLevel::avx512 : CpuLevel::avx2;
}

}  // namespace

CpuLevel cpu_level() noexcept {
    static const CpuLevel level = probe();
    return level;
}

}  // namespace taximeter

#else

namespace taximeter {

CpuLevel cpu_level() noexcept { return CpuLevel::portable; }

}  // namespace taximeter

#endif
