// What a forward pass does to its rows between the products, one row at a time: nothing here knows how many rows there are.
// Tolerances: about 4 ulp for the activations, 2⁻²² relative for a norm.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ElementwiseKernels {
    // out = x / sqrt(mean(x²) + eps) × weight, over k values. out may be x.
    void (*rms_norm)(const float* x, const float* weight, int64_t k, float eps, float* out);
    // x += y
    void (*add)(float* x, const float* y, int64_t k);
    // x × factor
    void (*scale)(float* x, float factor, int64_t k);
    // Turns the pairs (i, i + half) by the angles whose cosines and sines are given, in place.
    void (*rotate)(float* head, const float* cos, const float* sin, int64_t half);
    // gate = gate / (1 + e^−gate) × up
    void (*silu_mul)(float* gate, const float* up, int64_t k);
    // gate = gate / 2 × (1 + tanh(√(2/π) × (gate + 0.044715 gate³))) × up
    void (*gelu_tanh_mul)(float* gate, const float* up, int64_t k);
    // The greatest place_in_order of k >= 1 values.
    int32_t (*greatest)(const float* x, int64_t k);
};

// Whole numbers in the order of the floats: both zeros are one, and NaN comes after all others, as numpy's argmax has it.
static inline int32_t place_in_order(float x) {
    int32_t bits;
    x += 0.0f;  // -0 becomes +0
    memcpy(&bits, &x, sizeof bits);
    return (bits & INT32_MAX) > 0x7f800000 ? INT32_MAX : bits ^ ((bits >> 31) & INT32_MAX);
}

extern const struct ElementwiseKernels elementwise_portable, elementwise_avx2, elementwise_avx512;
