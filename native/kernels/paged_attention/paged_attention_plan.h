// How one step's attention is cut into tasks. Knows nothing of levels, threads or layers: the cut decides who computes, never
// what is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_attention.h"

namespace taximeter {

class AttentionPlan {
public:
    // Cuts a step for about `threads` threads. Reads the rows, the heads and the window of `job`; what it points to may change
    // between the layers that share the plan. Allocates only while steps grow.
    void cut(const PagedAttention& job, int threads);

    // Tasks come with the longest first and may run in any order, on any thread, with kAttentionScratchBytes each.
    std::int64_t tasks() const noexcept { return static_cast<std::int64_t>(tasks_.size()); }
    void run(AttentionSpanKernel kernel, const PagedAttention& job, std::int64_t task, void* scratch) noexcept;

    // When all tasks of a layer are done: puts together what was cut along the keys. In any order, on any thread.
    std::int64_t merges() const noexcept { return static_cast<std::int64_t>(merges_.size()); }
    void merge(const PagedAttention& job, std::int64_t i) const noexcept;

private:
    struct Task {
        std::int64_t row_begin, row_end, kv_head, span_begin, span_end;
        std::int64_t group_begin, group_end;  // of the query heads that share the kv head
        std::int64_t partial;  // where its states lie, -1 for none
        std::int64_t cost;
    };
    struct Merge {
        std::int64_t row_begin, row_end, kv_head, spans, partial;
    };

    std::int64_t cut_tile(const PagedAttention& job, std::int64_t row_begin, std::int64_t row_end, std::int64_t kv_head,
                          std::int64_t limit, std::int64_t parts, std::int64_t partial);

    std::vector<Task> tasks_;
    std::vector<Merge> merges_;
    std::vector<std::int64_t> tiles_;  // the first row of each, and the end
    std::vector<float> partials_;
};

}  // namespace taximeter
