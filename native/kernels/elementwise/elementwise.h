// What a forward pass does to its rows between the products, one row at a time: nothing here knows how many rows there are.
// Tolerances: about 4 ulp for the activations, 2⁻²² relative for a norm.
#pragma once

#include <stddef.h>
#include <stdint.h>

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
};

extern const struct ElementwiseKernels elementwise_portable, elementwise_avx2, elementwise_avx512;
