// The softmax state of a line over some of its keys, and how two of them merge. Every operation is a plain IEEE one, rounded by
// itself, so that each level and the plan, which merges what tasks left, get the same bits.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

// Scores are in base 2: `top` is the largest, `total` the sum of 2^(score - top), `mixed` the sum of the values so weighted.
// A total of zero is a state that has seen no key.
struct AttentionState {
    float top, total;
    float* mixed;
};

// 2^x for x ≤ 0, exactly 1 at 0, and exactly zero below 2⁻¹²⁶.
static inline float attention_exp2(float x) {
    if (!(x >= -126.0f)) return x < 0.0f ? 0.0f : x;  // what is not a number has no whole part, and stays what it is
    const float n = (x + 12582912.0f) - 12582912.0f, r = x - n;
    float p = 1.5353362e-4f;
    p = p * r + 1.3398875e-3f;
    p = p * r + 9.6184370e-3f;
    p = p * r + 5.5503324e-2f;
    p = p * r + 2.4022648e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

// state = state, then next.
static inline void attention_merge(struct AttentionState* state, const float* mixed, float top, float total, int64_t dim) {
    if (total == 0.0f) return;
    if (state->total == 0.0f) {
        memcpy(state->mixed, mixed, (size_t)dim * sizeof(float));
        state->top = top;
        state->total = total;
        return;
    }
    const float new_top = top > state->top ? top : state->top;
    const float old_part = attention_exp2(state->top - new_top), new_part = attention_exp2(top - new_top);
    for (int64_t i = 0; i < dim; ++i) state->mixed[i] = state->mixed[i] * old_part + mixed[i] * new_part;
    state->total = state->total * old_part + total * new_part;
    state->top = new_top;
}

// The sign of a zero depends on which zeros were added to it; the last sum takes it away.
static inline void attention_finish(const float* mixed, float total, float* out, int64_t dim) {
    for (int64_t i = 0; i < dim; ++i) out[i] = mixed[i] / total + 0.0f;
}
