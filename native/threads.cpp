#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "processors.h"

namespace taximeter {
namespace {

constexpr std::uint32_t kOpen = 1, kOneInside = 2;
constexpr std::int64_t kLine = 64;

// How long a thread looks again and again before it sleeps. Between two steps: about what Python needs from one to the next,
// so that a busy engine does not wake its threads at every token and an idle one sleeps at once. Inside a step, where the
// others are microseconds away: longer, but giving the processor away between looks.
constexpr int kSpinsBetweenJobs = 4000, kSpinsInside = 2000, kYieldsInside = 200;

void pause() noexcept {
#if TAXIMETER_X86
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Waits until `value` is no longer `old`: spins, then gives way, then sleeps. `between` two looks of the first kind.
template <typename Between>
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old, int spins, int yields, Between between) noexcept {
    for (int i = 0; i < spins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        between();
    }
    for (int i = 0; i < yields; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        std::this_thread::yield();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

std::int64_t Team::claim(std::int64_t tasks) noexcept {
    std::uint64_t ticket = phases_.ticket.load(std::memory_order_relaxed);
    while (ticket >> 32 == phase_ && (ticket & 0xffffffff) < static_cast<std::uint64_t>(tasks)) {
        if (phases_.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire, std::memory_order_relaxed))
            return static_cast<std::int64_t>(ticket & 0xffffffff);
    }
    return -1;
}

void Team::finish(std::int64_t done, std::int64_t tasks) noexcept {
    const std::uint32_t phase = phase_++;
    if (done > 0 && phases_.done.fetch_add(done, std::memory_order_acq_rel) + done == tasks) {
        phases_.done.store(0, std::memory_order_relaxed);
        phases_.ticket.store(std::uint64_t{phase_} << 32, std::memory_order_release);
        phases_.ended.store(phase_, std::memory_order_release);
        phases_.ended.notify_all();
        return;
    }
    const auto ask_memory = [this]() noexcept {
        if (soon_ == soon_end_) return pause();
        __builtin_prefetch(soon_, 0, 2);  // into the second cache: the first is too small for what may come of it
        soon_ += std::min<std::int64_t>(kLine, soon_end_ - soon_);
    };
    // A late thread, many phases behind, is not held up by any of them.
    for (std::uint32_t ended; (ended = phases_.ended.load(std::memory_order_acquire)) <= phase;)
        wait_while(phases_.ended, ended, kSpinsInside, kYieldsInside, ask_memory);
}

ThreadPool::ThreadPool(int threads) { start(threads); }

void ThreadPool::start(int threads) {
    scratch_.resize(static_cast<std::size_t>(threads));
    scratch_bytes_ = 0;
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work_until_stopped(i); });
    } catch (const std::system_error&) {  // a container may have no more of them: those that it has do the work
        scratch_.resize(workers_.size() + 1);
    }
}

void ThreadPool::resize(int threads) {
    const std::lock_guard turn(turn_);
    if (threads == this->threads()) return;
    stopping_.store(true, std::memory_order_relaxed);
    ring();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    scratch_.clear();
    stopping_.store(false, std::memory_order_relaxed);
    start(threads);
}

void ThreadPool::run(std::int64_t tasks, std::size_t scratch_bytes, Task task, void* job) {
    struct Tasks {
        std::int64_t count;
        Task task;
        void* job;
    } all{tasks, task, job};
    perform(
        tasks <= 1, scratch_bytes,
        [](void* job, Team& team, int, std::uint8_t* scratch) noexcept {
            const Tasks& all = *static_cast<const Tasks*>(job);
            team.share(
                all.count, [](std::int64_t) noexcept {}, [&](std::int64_t task) noexcept { all.task(all.job, task, scratch); });
        },
        &all);
}

void ThreadPool::together(std::size_t scratch_bytes, Function function, void* job) {
    perform(false, scratch_bytes, function, job);
}

void ThreadPool::perform(bool alone, std::size_t scratch_bytes, Function function, void* job) {
    const std::lock_guard turn(turn_);
    if (scratch_bytes > scratch_bytes_) {
        for (Memory& scratch : scratch_) scratch = Memory(scratch_bytes, Memory::Pages::huge);
        scratch_bytes_ = scratch_bytes;
    }
    function_ = function;
    job_ = job;
    phases_.ticket.store(0, std::memory_order_relaxed);
    phases_.ended.store(0, std::memory_order_relaxed);
    if (alone || workers_.empty()) {
        take_part(0);
        return;
    }
    door_.store(kOpen, std::memory_order_release);
    ring();
    take_part(0);
    std::uint32_t inside = door_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (inside != 0) {
        wait_while(door_, inside, kSpinsInside, kYieldsInside, pause);
        inside = door_.load(std::memory_order_acquire);
    }
}

void ThreadPool::ring() noexcept {
    bell_.fetch_add(1, std::memory_order_release);
    bell_.notify_all();
}

void ThreadPool::work_until_stopped(int index) noexcept {
    std::uint32_t heard = 0;  // a bell rung before this thread listened only costs one look at the door
    for (;;) {
        wait_while(bell_, heard, kSpinsBetweenJobs, 0, pause);
        heard = bell_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        if (!enter()) continue;
        take_part(index);
        leave();
    }
}

void ThreadPool::take_part(int index) noexcept {
    Team team(phases_, threads());
    function_(job_, team, index, scratch_[static_cast<std::size_t>(index)].as());
}

bool ThreadPool::enter() noexcept {
    std::uint32_t state = door_.load(std::memory_order_relaxed);
    while (state & kOpen) {
        if (door_.compare_exchange_weak(state, state + kOneInside, std::memory_order_acquire)) return true;
    }
    return false;
}

void ThreadPool::leave() noexcept {
    const std::uint32_t before = door_.fetch_sub(kOneInside, std::memory_order_release);
    if (before == kOneInside) door_.notify_all();  // the last one out of a shut door
}

namespace {

std::mutex pool_birth;
ThreadPool* the_pool = nullptr;  // never destroyed: its workers may outlive static destruction

// The child of a fork has none of its parent's threads and must not touch what they may have held.
void forget_pool() noexcept {
    new (&pool_birth) std::mutex;
    the_pool = nullptr;
}

}  // namespace

ThreadPool& thread_pool() {
    const std::lock_guard birth(pool_birth);
    if (the_pool == nullptr) {
        static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
        (void)registered;
        the_pool = new ThreadPool(usable_processors());
    }
    return *the_pool;
}

}  // namespace taximeter
