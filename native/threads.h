// One pool of threads for everything native. It decides who computes a task, never what a task computes.
//
// A job is a function that every thread runs: a sequence of phases, hundreds of them in a forward pass, each cut into tasks.
// A phase ends when its tasks are done, not when everybody has come: a thread that the system puts aside between two tasks
// keeps nobody waiting, and joins whatever phase it then finds. Between jobs the threads sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"

namespace taximeter {

// How the threads inside one job share out a phase.
struct Phases {
    // Which phase it is, in the upper half, and the number of its next task. One word: a thread that comes late cannot take
    // a task of a phase that it is not in.
    alignas(64) std::atomic<std::uint64_t> ticket{0};
    alignas(64) std::atomic<std::int64_t> done{0};  // tasks of this phase
    alignas(64) std::atomic<std::uint32_t> ended{0};  // phases; what those without a task wait for
};

// The threads inside one job, as one of them sees it.
class Team {
public:
    int threads() const noexcept { return threads_; }

    // What a later phase will read: whoever waits for the end of a phase has memory send it meanwhile. A hint, and nobody's
    // promise that it is read.
    void reads_soon(const std::uint8_t* from, std::int64_t bytes) noexcept {
        soon_ = from;
        soon_end_ = from + bytes;
    }

    // The next phase: `work(task)` for 0 to tasks - 1, each once, on whoever is awake. Returns when all are done, to a
    // thread that comes too late for any of them at once. Every thread calls this for the same phases in the same order.
    //
    // A thread that gets a task calls `ready(task)` with its first one before it. While it holds a task the phase cannot end,
    // so only in these two may a thread touch what other threads write in other phases. Exactly one thread is made ready
    // with task 0.
    template <typename Ready, typename Work>
    void share(std::int64_t tasks, Ready&& ready, Work&& work) noexcept {
        if (tasks <= 0) return;
        std::int64_t done = 0;
        for (std::int64_t task; (task = claim(tasks)) >= 0; ++done) {
            if (done == 0) ready(task);
            work(task);
        }
        finish(done, tasks);
    }

private:
    friend class ThreadPool;
    Team(Phases& phases, int threads) noexcept : phases_(phases), threads_(threads) {}

    std::int64_t claim(std::int64_t tasks) noexcept;  // negative: none is left
    void finish(std::int64_t done, std::int64_t tasks) noexcept;

    Phases& phases_;
    const std::uint8_t* soon_ = nullptr;
    const std::uint8_t* soon_end_ = nullptr;
    std::uint32_t phase_ = 0;
    int threads_;
};

constexpr int kMostThreads = 4096;  // more than any machine has

class ThreadPool {
public:
    // `scratch` is 64-byte aligned and belongs to the calling thread until the function returns.
    using Task = void (*)(void* job, std::int64_t task, std::uint8_t* scratch) noexcept;
    using Function = void (*)(void* job, Team& team, int thread, std::uint8_t* scratch) noexcept;

    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

    // One phase: runs tasks 0 to tasks - 1 on the pool and the caller; returns when all are done. Callers take turns.
    void run(std::int64_t tasks, std::size_t scratch_bytes, Task task, void* job);

    // Runs the function on the caller, as thread 0, and on every other thread that wakes before it is over; returns when all
    // of these have returned. What has to be done is done in phases of the team.
    void together(std::size_t scratch_bytes, Function function, void* job);

    // Ends the workers and starts others; `threads`, at most kMostThreads, counts the caller. Where the system gives fewer,
    // there are fewer.
    void resize(int threads);

private:
    void start(int threads);
    void work_until_stopped(int index) noexcept;
    void take_part(int index) noexcept;
    void perform(bool alone, std::size_t scratch_bytes, Function function, void* job);
    bool enter() noexcept;
    void leave() noexcept;
    void ring() noexcept;

    std::mutex turn_;  // held by the caller whose job runs
    std::vector<std::thread> workers_;
    std::vector<Memory> scratch_;  // one per thread, the caller's first
    std::size_t scratch_bytes_ = 0;

    // The job. Written only while the door is shut and nobody is inside.
    Function function_ = nullptr;
    void* job_ = nullptr;
    Phases phases_;

    // The door: bit 0 is open, the bits above count the workers inside. A worker that wakes late finds it shut and goes
    // back to sleep, so a short job never waits for a thread that had nothing to do with it.
    std::atomic<std::uint32_t> door_{0};
    std::atomic<std::uint32_t> bell_{0};  // rung once for every job
    std::atomic<bool> stopping_{false};
};

// The process's pool, made at the first call with one thread per usable processor; a forked child gets its own.
ThreadPool& thread_pool();

}  // namespace taximeter
