#include "paged_attention_f32.h"

#include <vector>

#include "threads.h"

namespace taximeter {
namespace {

struct Cut {
    PagedAttentionF32Kernel kernel;
    const PagedAttentionF32* job;
    std::vector<std::int64_t> row_begin;  // of each run of rows, and the end of the last
};

void run_task(const void* context, std::int64_t task, float* scratch) noexcept {
    const Cut& cut = *static_cast<const Cut*>(context);
    const std::size_t run = static_cast<std::size_t>(task / cut.job->kv_heads);
    cut.kernel(cut.job, cut.row_begin[run], cut.row_begin[run + 1], task % cut.job->kv_heads, scratch);
}

}  // namespace

void paged_attention_f32(PagedAttentionF32Kernel kernel, const PagedAttentionF32& job) {
    Cut cut{kernel, &job, {}};
    const std::int64_t limit = attention_rows_per_task(&job);
    for (std::int64_t row = 0; row < job.rows; ++row) {
        const bool continues = !cut.row_begin.empty() && row - cut.row_begin.back() < limit &&
                               job.row_seq[row] == job.row_seq[row - 1];
        if (!continues) cut.row_begin.push_back(row);
    }
    const std::int64_t runs = static_cast<std::int64_t>(cut.row_begin.size());
    cut.row_begin.push_back(job.rows);
    thread_pool().run(runs * job.kv_heads, static_cast<std::size_t>(attention_scratch_floats(&job)), run_task, &cut);
}

}  // namespace taximeter
