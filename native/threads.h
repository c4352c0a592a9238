// One pool of threads for all kernels. It decides who computes a task, never what a task computes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace taximeter {

class ThreadPool {
public:
    // `scratch` is 64-byte aligned and belongs to the calling thread until the task ends.
    using Task = void (*)(const void* job, std::int64_t task, float* scratch) noexcept;

    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

    // Runs tasks 0 to tasks - 1 on the pool and the caller; returns when all are done. Callers take turns.
    void run(std::int64_t tasks, std::size_t scratch_floats, Task task, const void* job);

    // Ends the workers and starts others; `threads` counts the caller.
    void resize(int threads);

private:
    struct Free {
        void operator()(float* p) const noexcept;
    };
    using Scratch = std::unique_ptr<float, Free>;

    void start(int threads);
    void work_until_stopped(std::size_t index) noexcept;
    void claim_tasks(std::size_t index) noexcept;
    bool enter() noexcept;
    void leave() noexcept;

    std::mutex turn_;  // held by the caller whose job runs
    std::vector<std::thread> workers_;
    std::vector<Scratch> scratch_;  // one per thread, the caller's first
    std::size_t scratch_floats_ = 0;

    // The job. Written only while the door is shut and nobody is inside.
    Task task_ = nullptr;
    const void* job_ = nullptr;
    std::int64_t tasks_ = 0;
    std::atomic<std::int64_t> next_{0};

    // The door: bit 0 is open, the bits above count the workers inside. A worker that wakes late finds it shut and goes
    // back to sleep, so a short job never waits for a thread that had nothing to do with it.
    std::atomic<std::uint32_t> door_{0};
    std::atomic<std::uint32_t> bell_{0};  // rung once for every job
    std::atomic<bool> stopping_{false};
};

// The process's pool, made at the first call with one thread per usable processor; a forked child gets its own.
ThreadPool& thread_pool();

}  // namespace taximeter
