// Attention and the writing of its cache, one kernel at a time: for tests and benchmarks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>

#include "bindings/arrays.h"
#include "bindings/levels.h"
#include "bindings/module.h"
#include "dispatch.h"
#include "kernels/paged_attention/paged_attention_plan.h"
#include "threads.h"

namespace taximeter {
namespace {

using std::int64_t;

template <typename Element, typename Array>
void* cache_memory(const Array& cache) {
    return const_cast<Element*>(checked<const Element>("cache", cache, {kAny, kAny, 2, kAny, kAny}));
}

// One layer's cache, (blocks, kv_heads, 2, block_tokens, head_dim): float32, or bf16 as uint16; int8 with four bytes more in
// place of each token's scale. Returns its number of blocks.
template <typename Array>
int64_t take_cache(const Array& cache, PagedAttention* job) {
    const bool is_f32 = cache.dtype() == nb::dtype<float>(), is_int8 = cache.dtype() == nb::dtype<std::int8_t>();
    job->format = is_f32 ? kKVF32 : is_int8 ? kKVInt8 : kKVBF16;
    job->cache = is_f32    ? cache_memory<float>(cache)
                 : is_int8 ? cache_memory<std::int8_t>(cache)
                           : cache_memory<std::uint16_t>(cache);
    job->kv_heads = size(cache, 1);
    job->block_tokens = size(cache, 3);
    job->head_dim = size(cache, 4) - (is_int8 ? static_cast<int64_t>(sizeof(float)) : 0);
    if (job->block_tokens < 16 || job->block_tokens % 16 != 0)
        refuse("a block of the cache holds a multiple of 16 tokens, not " + std::to_string(job->block_tokens));
    if (job->head_dim < 1 || job->head_dim > kAttentionMaxDim)
        refuse("the cache's heads have a size of 1 to " + std::to_string(int{kAttentionMaxDim}) + ", not " +
               std::to_string(job->head_dim));
    if (job->format != kKVF32 && job->head_dim % 2 != 0) refuse("a bf16 or int8 cache has heads of an even size");
    job->block_stride = job->kv_heads * 2 * attention_half_bytes(job);
    return size(cache, 0);
}

// Every index that the kernel will follow.
void check_indices(const PagedAttention& job, int64_t blocks, int64_t sequences) {
    const int64_t positions = job.max_blocks * job.block_tokens;
    for (int64_t row = 0; row < job.rows; ++row) {
        const int64_t sequence = job.row_seq[row], position = job.row_pos[row];
        if (sequence < 0 || sequence >= sequences)
            refuse("row_seq names a sequence outside the " + std::to_string(sequences) + " of block_tables");
        if (position < 0 || position >= positions)
            refuse("row_pos lies outside the " + std::to_string(positions) + " positions of a block table");
    }
    for (int64_t begin = 0, end = 0; begin < job.rows; begin = end) {
        int64_t first = job.row_pos[begin], last = first;
        for (; end < job.rows && job.row_seq[end] == job.row_seq[begin]; ++end) {
            first = std::min<int64_t>(first, job.row_pos[end]);
            last = std::max<int64_t>(last, job.row_pos[end]);
        }
        const int32_t* table = job.block_tables + job.row_seq[begin] * job.max_blocks;
        for (int64_t i = attention_first_seen(&job, first) / job.block_tokens; i <= last / job.block_tokens; ++i)
            if (table[i] < 0 || table[i] >= blocks)
                refuse("block_tables names a block outside the cache's " + std::to_string(blocks));
    }
}

struct Attention {
    const PagedAttention& job;
    AttentionSpanKernel kernel;
    AttentionPlan plan;
};

void paged_attention(const std::string& level, const Input& q, const Input& cache, const Input& block_tables, const Input& row_seq,
                     const Input& row_pos, double scale, std::optional<int64_t> window, const Output& out) {
    const KernelTable& kernels = kernel_table(level_named(level));
    PagedAttention job{};
    const int64_t blocks = take_cache(cache, &job);
    job.q = checked<const float>("q", q, {kAny, kAny, job.head_dim});
    job.rows = size(q, 0);
    job.heads = size(q, 1);
    job.q_stride = job.out_stride = job.heads * job.head_dim;
    job.block_tables = checked<const std::int32_t>("block_tables", block_tables, {kAny, kAny});
    job.max_blocks = size(block_tables, 1);
    job.row_seq = checked<const std::int32_t>("row_seq", row_seq, {job.rows});
    job.row_pos = checked<const std::int32_t>("row_pos", row_pos, {job.rows});
    job.out = checked<float>("out", out, {job.rows, job.heads, job.head_dim});
    job.scale = static_cast<float>(scale);
    if (job.kv_heads == 0 || job.heads == 0 || job.heads % job.kv_heads != 0)
        refuse(std::to_string(job.heads) + " query heads cannot share " + std::to_string(job.kv_heads) + " kv heads evenly");
    if (window && *window < 1) refuse("a window of " + std::to_string(*window) + " keys sees nothing");
    job.window = window.value_or(0);
    check_indices(job, blocks, size(block_tables, 0));

    const nb::gil_scoped_release released;
    Attention work{job, kernels.attention, {}};
    work.plan.cut(job, thread_pool().threads());
    thread_pool().run(
        work.plan.tasks(), kAttentionScratchBytes,
        [](void* context, int64_t task, std::uint8_t* scratch) noexcept {
            auto& work = *static_cast<Attention*>(context);
            work.plan.run(work.kernel, work.job, task, scratch);
        },
        &work);
    for (int64_t i = 0; i < work.plan.merges(); ++i) work.plan.merge(job, i);
}

void kv_put(const std::string& level, const Input& k, const Input& v, const Output& cache, const Input& slots) {
    const KernelTable& kernels = kernel_table(level_named(level));
    PagedAttention job{};
    const int64_t capacity = take_cache(cache, &job) * job.block_tokens;
    const auto* keys = checked<const float>("k", k, {kAny, job.kv_heads, job.head_dim});
    const int64_t rows = size(k, 0);
    const auto* values = checked<const float>("v", v, {rows, job.kv_heads, job.head_dim});
    const auto* to = checked<const int64_t>("slots", slots, {rows});
    for (int64_t row = 0; row < rows; ++row)
        if (to[row] < 0 || to[row] >= capacity) refuse("a slot lies outside the cache's " + std::to_string(capacity) + " slots");
    const nb::gil_scoped_release released;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < job.kv_heads; ++head) {
            const int64_t at = (row * job.kv_heads + head) * job.head_dim;
            kernels.kv_put(&job, to[row], head, keys + at, values + at);
        }
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("paged_attention", &paged_attention, nb::arg("level"), nb::arg("q").noconvert(), nb::arg("cache").noconvert(),
          nb::arg("block_tables").noconvert(), nb::arg("row_seq").noconvert(), nb::arg("row_pos").noconvert(), nb::arg("scale"),
          nb::arg("window").none(), nb::arg("out").noconvert());
    m.def("kv_put", &kv_put, nb::arg("level"), nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("cache").noconvert(),
          nb::arg("slots").noconvert());
}

}  // namespace taximeter
