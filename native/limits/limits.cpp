#include "limits/limits.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "limits/kernels.h"
#include "memory.h"

namespace taximeter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFewestRounds = 5;
constexpr double kLongestRoundSeconds = 0.02;  // long beside a barrier, short beside what else a machine does

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const LimitKernels& kernels_of(CpuLevel level) noexcept {
#if TAXIMETER_X86
#if TAXIMETER_AVX512
#if TAXIMETER_AMX
    if (level == CpuLevel::amx) return limits_amx;
#endif
    if (level >= CpuLevel::avx512_bf16) return limits_avx512_bf16;
    if (level == CpuLevel::avx512) return limits_avx512;
#endif
    if (level == CpuLevel::avx2) return limits_avx2;
#endif
    (void)level;
    return limits_portable;
}

// The shortest time that all of some threads take for `work(thread)`, in rounds that begin and end together. Each prepares
// for itself before the first.
template <typename Prepare, typename Work>
double shortest_s(int threads, double seconds, Prepare prepare, Work work) {
    const Clock::time_point began = Clock::now();
    Clock::time_point started;
    double best = 0.0;
    int rounds = 0;
    bool more = true;
    std::barrier start(threads, [&]() noexcept { started = Clock::now(); });
    std::barrier end(threads, [&]() noexcept {
        const double took = seconds_since(started);
        best = rounds == 0 ? took : std::min(best, took);
        more = ++rounds < kFewestRounds || seconds_since(began) < seconds;
    });
    const auto take_part = [&](int thread) noexcept {
        prepare(thread);
        while (more) {
            start.arrive_and_wait();
            work(thread);
            end.arrive_and_wait();
        }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(take_part, thread);
    take_part(0);
    for (std::thread& other : others) other.join();
    return best;
}

}  // namespace

double read_gb_per_s(CpuLevel level, int threads, std::size_t bytes, double seconds) {
    const auto read = kernels_of(level).read;
    const std::size_t part = std::max<std::size_t>(bytes / static_cast<std::size_t>(threads) / kReadBytes, 1) * kReadBytes;
    const Memory memory(part * static_cast<std::size_t>(threads), Memory::Pages::huge);
    const auto begin = [&](int thread) { return memory.as<std::uint8_t>() + static_cast<std::size_t>(thread) * part; };
    // Whoever reads a page touches it first: it then lies in memory of its own.
    const double best = shortest_s(
        threads, seconds, [&](int thread) noexcept { std::memset(begin(thread), 0, part); },
        [&](int thread) noexcept { read(begin(thread), part); });
    return static_cast<double>(memory.bytes()) / best / 1e9;
}

std::optional<double> gop_per_s(CpuLevel level, Unit unit, int threads, double seconds) {
    const LimitKernels& kernels = kernels_of(level);
    const auto run = unit == Unit::int8 ? kernels.int8 : unit == Unit::bf16 ? kernels.bf16 : kernels.f32;
    if (run == nullptr) return std::nullopt;
    const double enough = std::min(kLongestRoundSeconds, seconds / kFewestRounds);
    std::int64_t rounds = 1024;
    for (double took = 0.0; took < enough; rounds *= 2) {
        const Clock::time_point start = Clock::now();
        run(rounds);
        took = seconds_since(start);
    }
    const double operations = static_cast<double>(run(1)) * static_cast<double>(rounds);
    const double best = shortest_s(threads, seconds, [](int) noexcept {}, [&](int) noexcept { run(rounds); });
    return operations * threads / best / 1e9;
}

}  // namespace taximeter
