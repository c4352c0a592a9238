#include "threads.h"

#include <pthread.h>

#include <new>

#include "processors.h"

namespace taximeter {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::uint32_t kOpen = 1, kOneInside = 2;

// About ten microseconds: the time Python needs between two kernels of a step. After that a waiting thread sleeps.
constexpr int kSpins = 200;

void pause() noexcept {
#if TAXIMETER_X86
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Waits until `value` is no longer `old`: spins briefly, then sleeps.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) noexcept {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

void ThreadPool::Free::operator()(float* p) const noexcept { ::operator delete(p, kAlignment); }

ThreadPool::ThreadPool(int threads) { start(threads); }

void ThreadPool::start(int threads) {
    scratch_.resize(static_cast<std::size_t>(threads));
    scratch_floats_ = 0;
    for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this, i] { work_until_stopped(static_cast<std::size_t>(i)); });
    }
}

void ThreadPool::resize(int threads) {
    const std::lock_guard turn(turn_);
    if (threads == this->threads()) return;
    stopping_.store(true, std::memory_order_relaxed);
    bell_.fetch_add(1, std::memory_order_release);
    bell_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    scratch_.clear();
    stopping_.store(false, std::memory_order_relaxed);
    start(threads);
}

void ThreadPool::run(std::int64_t tasks, std::size_t scratch_floats, Task task, const void* job) {
    const std::lock_guard turn(turn_);
    if (scratch_floats > scratch_floats_) {
        for (Scratch& scratch : scratch_) {
            scratch.reset(static_cast<float*>(::operator new(scratch_floats * sizeof(float), kAlignment)));
        }
        scratch_floats_ = scratch_floats;
    }
    task_ = task;
    job_ = job;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);

    const bool shared = tasks > 1 && !workers_.empty();
    if (shared) {
        door_.store(kOpen, std::memory_order_release);
        bell_.fetch_add(1, std::memory_order_release);
        bell_.notify_all();
    }
    claim_tasks(0);
    if (!shared) return;
    std::uint32_t inside = door_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (inside != 0) {
        wait_while(door_, inside);
        inside = door_.load(std::memory_order_acquire);
    }
}

void ThreadPool::work_until_stopped(std::size_t index) noexcept {
    std::uint32_t heard = 0;  // a bell rung before this thread listened only costs one look at the door
    for (;;) {
        wait_while(bell_, heard);
        heard = bell_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        if (!enter()) continue;
        claim_tasks(index);
        leave();
    }
}

void ThreadPool::claim_tasks(std::size_t index) noexcept {
    for (;;) {
        const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
        if (task >= tasks_) return;
        task_(job_, task, scratch_[index].get());
    }
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
