// One pool of threads for everything native. It decides who computes a task, never what a task computes.
//
// Two ways to use it: `run` hands out independent tasks to whoever is awake; `together` brings every thread into one function
// that meets at barriers, as a forward pass does hundreds of times. Between calls the threads sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"

namespace taximeter {

// The threads inside one call of `together`, as one of them sees it.
class Team {
public:
    int threads() const noexcept { return threads_; }

    // The next task's number, each number given out once until the next barrier.
    std::int64_t claim() noexcept { return next_.fetch_add(1, std::memory_order_relaxed); }

    // Returns once all threads are here; then tasks are numbered from zero again. `last` runs on one thread, the others
    // still waiting.
    template <typename Last>
    void barrier(Last&& last) noexcept {
        const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            last();
            next_.store(0, std::memory_order_relaxed);
            waiting_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            phase_.notify_all();
        } else {
            wait_for(phase);
        }
    }
    void barrier() noexcept {
        barrier([]() noexcept {});
    }

private:
    friend class ThreadPool;
    void wait_for(std::uint32_t old) noexcept;

    int threads_ = 1;
    alignas(64) std::atomic<std::int64_t> next_{0};
    alignas(64) std::atomic<int> waiting_{0};
    alignas(64) std::atomic<std::uint32_t> phase_{0};
};

class ThreadPool {
public:
    // `scratch` is 64-byte aligned and belongs to the calling thread until the function returns.
    using Task = void (*)(void* job, std::int64_t task, std::uint8_t* scratch) noexcept;
    using Together = void (*)(void* job, Team& team, int thread, std::uint8_t* scratch) noexcept;

    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

    // Runs tasks 0 to tasks - 1 on the pool and the caller; returns when all are done. Callers take turns.
    void run(std::int64_t tasks, std::size_t scratch_bytes, Task task, void* job);

    // Runs the function once on every thread, the caller being thread 0; returns when all have returned.
    void together(std::size_t scratch_bytes, Together function, void* job);

    // Ends the workers and starts others; `threads` counts the caller.
    void resize(int threads);

private:
    void start(int threads);
    void work_until_stopped(int index) noexcept;
    void take_part(int index) noexcept;
    void provide_scratch(std::size_t bytes);
    bool enter() noexcept;
    void leave() noexcept;
    void ring() noexcept;

    std::mutex turn_;  // held by the caller whose job runs
    std::vector<std::thread> workers_;
    std::vector<Memory> scratch_;  // one per thread, the caller's first
    std::size_t scratch_bytes_ = 0;

    // The job, one of two kinds. Written only while the door is shut and nobody is inside.
    Task task_ = nullptr;
    Together together_ = nullptr;
    void* job_ = nullptr;
    std::int64_t tasks_ = 0;
    Team team_;

    // The door: bit 0 is open, the bits above count the workers inside. A worker that wakes late finds it shut and goes
    // back to sleep, so a short job of tasks never waits for a thread that had nothing to do with it.
    std::atomic<std::uint32_t> door_{0};
    std::atomic<std::uint32_t> bell_{0};  // rung once for every job
    std::atomic<bool> stopping_{false};
};

// The process's pool, made at the first call with one thread per usable processor; a forked child gets its own.
ThreadPool& thread_pool();

}  // namespace taximeter
