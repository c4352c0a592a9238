// Attention of query rows over keys and values that lie in blocks, in float32. The contract stands beside the reference
// in src/taximeter/engine/kernels/paged_attention.py.
//
// One order of computing for every (row, head), whichever rows stand beside it: keys are taken in chunks that begin at
// multiples of kAttentionChunk; within a chunk a score is summed over the head's values in ascending order, and the
// weighted values over the keys in ascending order; between chunks the running state is rescaled by an online softmax.
// A chunk that a row does not see leaves its state untouched.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct PagedAttentionF32 {
    const float* q;         // rows, heads, head_dim
    const float* k_cache;   // blocks, kv_heads, block_size, head_dim
    const float* v_cache;
    const int32_t* block_tables;  // seqs, max_blocks
    const int32_t* row_seq;
    const int32_t* row_pos;
    float* out;             // like q
    float scale;
    int64_t window;         // keys a row sees, its own among them; 0 for all
    int64_t rows, heads, kv_heads, head_dim, block_size, max_blocks;
};

enum { kAttentionChunk = 64, kAttentionLines = 48 };

// A line is one query head of one row. A task computes up to kAttentionLines of them together, or one row's.
// Static, because the sources of all levels include this file and must not share a function.
static inline int64_t attention_rows_per_task(const PagedAttentionF32* job) {
    const int64_t group = job->heads / job->kv_heads;
    return group < kAttentionLines ? kAttentionLines / group : 1;
}
static inline int64_t attention_lines_per_task(const PagedAttentionF32* job) {
    return attention_rows_per_task(job) * (job->heads / job->kv_heads);
}
static inline int64_t attention_padded_dim(const PagedAttentionF32* job) { return (job->head_dim + 15) / 16 * 16; }
static inline int64_t attention_scratch_floats(const PagedAttentionF32* job) {
    const int64_t dim = attention_padded_dim(job);
    // Per line: query, weighted values, scores, and two numbers; beside them the chunk's keys, transposed.
    return attention_lines_per_task(job) * (2 * dim + kAttentionChunk + 2) + dim * kAttentionChunk;
}

// Computes rows row_begin to row_end, which belong to one sequence, for one kv head's group of query heads.
typedef void (*PagedAttentionF32Kernel)(const PagedAttentionF32* job, int64_t row_begin, int64_t row_end,
                                        int64_t kv_head, float* scratch) noexcept;

void paged_attention_f32_portable(const PagedAttentionF32*, int64_t, int64_t, int64_t, float*) noexcept;
void paged_attention_f32_avx2(const PagedAttentionF32*, int64_t, int64_t, int64_t, float*) noexcept;
void paged_attention_f32_avx512(const PagedAttentionF32*, int64_t, int64_t, int64_t, float*) noexcept;

namespace taximeter {

// Cuts the rows into tasks and runs them on the thread pool. Every index of the job has been checked.
void paged_attention_f32(PagedAttentionF32Kernel kernel, const PagedAttentionF32& job);

}  // namespace taximeter
