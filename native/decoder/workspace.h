// What a step needs besides weights and cache: made once for the most rows seen so far, never allocated within a step.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matmul_packed/matmul_packed.h"
#include "kernels/paged_attention/paged_attention_plan.h"
#include "memory.h"

namespace taximeter {

struct DecoderShape;

// Kinds of work that a profile tells apart. In a step of few rows, work on whole rows is part of the product behind it.
enum Phase { kRowWork, kQkvProduct, kHeads, kAttention, kOutProduct, kFeedForward, kDownProduct, kHeadProduct, kPhases };
const std::vector<const char*>& phase_names();

// Rows in the forms that products read, one after the other.
struct PreparedBuffer {
    void resize(std::int64_t rows, std::int64_t k);
    PreparedRows view(std::int64_t rows, std::int64_t k, const float* f32, std::int64_t f32_stride, bool zeros = false) const;

    Memory q, d, z, s, s_half, bf16;
};

// Cosines and sines of every position until the furthest one seen.
class RotaryTable {
public:
    void reach(std::int64_t position, const std::vector<double>& turns);
    const float* cos(std::int64_t position) const { return cos_.data() + position * half_; }
    const float* sin(std::int64_t position) const { return sin_.data() + position * half_; }

private:
    std::int64_t half_ = 0, positions_ = 0;
    std::vector<float> cos_, sin_;
};

struct Workspace {
    void reach(std::int64_t rows, const DecoderShape& shape);
    void reach_private(int threads, std::int64_t rows, const DecoderShape& shape);

    // For a step of few rows: what a thread keeps for itself, and where the residual stream goes while it is still read.
    struct Private {
        Memory x, normed;
        PreparedBuffer prepared;
    };
    Memory next_x;
    std::vector<Private> own;
    std::int64_t own_rows = 0;

    std::int64_t rows = 0;
    Memory x;         // rows × hidden: the residual stream
    Memory normed;    // rows × hidden
    Memory heads;     // rows × (queries, keys, values)
    Memory attended;  // rows × queries
    Memory product;   // rows × hidden: what goes back into the residual stream
    PreparedBuffer narrow, wide;  // of hidden or query width; of feed-forward width
    Memory gated;     // rows × ff, only where a float format reads it
    Memory best;      // rows: see Pass::note_best
    AttentionPlan plan_everywhere, plan_sliding;
    RotaryTable rotary_everywhere, rotary_sliding;
};

}  // namespace taximeter
