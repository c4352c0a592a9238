// Attention of query rows over keys and values that lie in blocks. The contract stands beside the reference in
// src/taximeter/engine/kernels/paged_attention.py.
//
// A layer's cache holds, for each block and kv head, the keys and then the values of block_tokens (a multiple of 16) tokens:
//     keys, for every 16 tokens   f32: head_dim × 16 tokens;        bf16: head_dim/2 × 16 tokens × 2 (a pair of features)
//     values                      f32: tokens × head_dim;           bf16: tokens/2 × head_dim × 2 (a pair of tokens)
// so that sixteen keys are one vector, and no step transposes anything. int8 lies as bf16 does, in bytes, and behind the keys and
// behind the values of a block come the scales of its tokens, in f32: an element is its byte times the scale of its vector. A
// kernel widens a span's bytes to bf16, which holds them exactly, and scales scores and weights instead of them.
//
// One order of computing for every (row, head), whichever rows stand beside it and however the work is cut: keys are taken in
// spans of kAttentionSpan that begin at fixed positions. A span is a softmax of its own: its scores, their largest, the weights
// relative to that, and the weighted values added over ascending keys. A line's spans are then merged in ascending order, by
// arithmetic that is the same at every level (state.h). A key that a row does not see adds an exact zero, and a span without
// any changes nothing.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum KVFormat { kKVF32, kKVBF16, kKVInt8 };
enum {
    kAttentionSpan = 512,
    kAttentionMaxDim = 256,
    kAttentionLines = 128,  // lines that a kernel computes together; a line is one query head of one row
    kAttentionScratchBytes = 1152 << 10,  // a thread's working memory, 64-byte aligned
};

struct PagedAttention {
    const float* q;  // row r, head h at q + r × q_stride + h × head_dim; already rotated, not yet scaled
    float* out;      // row r, head h at out + r × out_stride + h × head_dim
    int64_t q_stride, out_stride;
    void* cache;     // this layer's part of block 0: kv_heads × 2 × attention_half_bytes
    int64_t block_stride;  // bytes from this layer's part of one block to that of the next: a block's layers lie side by side
    enum KVFormat format;
    const int32_t* block_tables;  // sequences × max_blocks; only entries that a row can see are valid
    int64_t max_blocks;
    const int32_t* row_seq;  // rows of one sequence are contiguous, in ascending position
    const int32_t* row_pos;
    int64_t rows, heads, kv_heads, head_dim, block_tokens;  // head_dim ≤ kAttentionMaxDim, and even but in f32
    int64_t window;  // keys a row sees, its own among them; 0 for all
    float scale;
};

// Functions here are static, because the sources of all levels include this file and must not share one.
static inline int64_t attention_first_seen(const struct PagedAttention* job, int64_t position) {
    return job->window > 0 && position >= job->window ? position - job->window + 1 : 0;
}
// Bytes of one token's key or value, without and with its scale.
static inline int64_t kv_element_bytes(enum KVFormat format) { return format == kKVF32 ? 4 : format == kKVBF16 ? 2 : 1; }
static inline int64_t kv_vector_bytes(enum KVFormat format, int64_t head_dim) {
    return head_dim * kv_element_bytes(format) + (format == kKVInt8 ? (int64_t)sizeof(float) : 0);
}
// Bytes from the keys of a block and kv head to its values, and with twice as many to the next head's keys.
static inline int64_t attention_half_bytes(const struct PagedAttention* job) {
    return job->block_tokens * kv_vector_bytes(job->format, job->head_dim);
}
// Where the keys of a block and kv head begin.
static inline char* attention_keys(const struct PagedAttention* job, int64_t block, int64_t kv_head) {
    return (char*)job->cache + block * job->block_stride + kv_head * 2 * attention_half_bytes(job);
}
// The state of one line after one span, as a task leaves it for a merge: mixed (head_dim), top, total.
static inline int64_t attention_state_floats(const struct PagedAttention* job) { return job->head_dim + 2; }

// Rows row_begin to row_end, which belong to one sequence, for one kv head's group of query heads. Without `partial`, all spans
// that the rows see must be asked for, and `out` is written. With it, the state of every span and line is: [span][line].
typedef void (*AttentionSpanKernel)(const struct PagedAttention* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                                    int64_t span_begin, int64_t span_end, float* partial, void* scratch) noexcept;

// Writes one token's key and value (head_dim each) of one kv head into slot block × block_tokens + offset; bf16 is rounded to
// nearest even, int8 after division by a 127th of the vector's largest element. Two threads may write neighbouring slots.
typedef void (*KVPutKernel)(const struct PagedAttention* job, int64_t slot, int64_t kv_head, const float* k,
                            const float* v) noexcept;

#define TAXIMETER_PAGED_ATTENTION(level)                                                                              \
    void paged_attention_##level(const struct PagedAttention*, int64_t, int64_t, int64_t, int64_t, int64_t, float*,   \
                                 void*) noexcept;                                                                     \
    void kv_put_##level(const struct PagedAttention*, int64_t, int64_t, const float*, const float*) noexcept;
TAXIMETER_PAGED_ATTENTION(portable)
TAXIMETER_PAGED_ATTENTION(avx2)
TAXIMETER_PAGED_ATTENTION(avx512)
TAXIMETER_PAGED_ATTENTION(avx512_bf16)
TAXIMETER_PAGED_ATTENTION(amx)
#undef TAXIMETER_PAGED_ATTENTION
