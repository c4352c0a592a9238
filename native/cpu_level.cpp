#include "cpu_level.h"

#if TAXIMETER_X86

#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace taximeter {
namespace {

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
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

// Tile registers are large, so a process must ask Linux before it may use them; threads started later inherit the answer.
bool may_use_tiles() noexcept {
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

CpuLevel probe() noexcept {
    const Registers basic = cpuid(1), extended = cpuid(7), more = cpuid(7, 1);
    const bool os_xsave = has(basic.ecx, 27), avx = has(basic.ecx, 28), fma = has(basic.ecx, 12), f16c = has(basic.ecx, 29);
    if (!os_xsave || !avx || !fma || !f16c || !has(extended.ebx, 5)) return CpuLevel::portable;

    constexpr std::uint64_t ymm = 0b110, zmm = 0b1110'0110, tiles = 0b11 << 17;
    const std::uint64_t saved = saved_state();
    if ((saved & ymm) != ymm) return CpuLevel::portable;

    const bool f = has(extended.ebx, 16), dq = has(extended.ebx, 17), bw = has(extended.ebx, 30),
               vl = has(extended.ebx, 31), vnni = has(extended.ecx, 11);
    if (!(TAXIMETER_AVX512 && f && dq && bw && vl && vnni && (saved & zmm) == zmm)) return CpuLevel::avx2;
    if (!has(more.eax, 5)) return CpuLevel::avx512;

    const bool tile = has(extended.edx, 24), tile_int8 = has(extended.edx, 25), tile_bf16 = has(extended.edx, 22);
    if (!(TAXIMETER_AMX && tile && tile_int8 && tile_bf16 && (saved & tiles) == tiles && may_use_tiles()))
        return CpuLevel::avx512_bf16;
    return CpuLevel::amx;
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
