#include "limits/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "limits/kernels.h"
#include "memory.h"
#include "threads.h"

namespace taximeter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFewestRounds = 5;
constexpr double kLongestRoundSeconds = 0.02;  // long beside a barrier, short beside what else a machine does

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const LimitKernels& kernels_of(CpuLevel level) noexcept {
#if TAXIMETER_X86
#if TAXIMETER_AMX
    if (level == CpuLevel::amx) return limits_amx;
#endif
    if (level >= CpuLevel::avx512_bf16) return limits_avx512_bf16;
    if (level == CpuLevel::avx512) return limits_avx512;
    if (level == CpuLevel::avx2) return limits_avx2;
#endif
    (void)level;
    return limits_portable;
}

// The process's pool lives for ever; this one ends its threads.
struct Threads : ThreadPool {
    using ThreadPool::ThreadPool;
    ~Threads() { resize(1); }
};

// The shortest time that all threads of `pool` take for `work(thread)`, in rounds that begin and end together.
template <typename Work>
double shortest_s(ThreadPool& pool, double seconds, Work work) {
    struct Job {
        Work* work;
        double seconds, best;
        Clock::time_point began, started;
        int rounds;
        bool more;
    } job{&work, seconds, 0.0, Clock::now(), {}, 0, true};
    pool.together(
        0,
        [](void* context, Team& team, int thread, std::uint8_t*) noexcept {
            Job& job = *static_cast<Job*>(context);
            while (job.more) {
                team.barrier([&job]() noexcept { job.started = Clock::now(); });
                (*job.work)(thread);
                team.barrier([&job]() noexcept {
                    const double took = seconds_since(job.started);
                    job.best = job.rounds == 0 ? took : std::min(job.best, took);
                    job.more = ++job.rounds < kFewestRounds || seconds_since(job.began) < job.seconds;
                });
            }
        },
        &job);
    return job.best;
}

}  // namespace

double read_gb_per_s(CpuLevel level, int threads, std::size_t bytes, double seconds) {
    const auto read = kernels_of(level).read;
    const std::size_t part = std::max<std::size_t>(bytes / static_cast<std::size_t>(threads) / kReadBytes, 1) * kReadBytes;
    const Memory memory(part * static_cast<std::size_t>(threads), Memory::Pages::huge);
    Threads pool(threads);
    const auto begin = [&](int thread) { return memory.as<std::uint8_t>() + static_cast<std::size_t>(thread) * part; };
    // Whoever reads a page touches it first: it then lies in memory of its own.
    shortest_s(pool, 0.0, [&](int thread) noexcept { std::memset(begin(thread), 0, part); });
    const double best = shortest_s(pool, seconds, [&](int thread) noexcept { read(begin(thread), part); });
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
    Threads pool(threads);
    const double operations = static_cast<double>(run(1)) * static_cast<double>(rounds);
    const double best = shortest_s(pool, seconds, [&](int) noexcept { run(rounds); });
    return operations * threads / best / 1e9;
}

}  // namespace taximeter
