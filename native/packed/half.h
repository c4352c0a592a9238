// float16 and bfloat16 against float32, for sources that may not ask the processor. Every function is the translation
// unit's own (static): levels must not share code by name.
#pragma once

#include <stdint.h>
#include <string.h>

namespace taximeter {

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Exact. No branches, so that a loop over it becomes vectors.
static inline float half_to_float(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t special = magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0u;  // infinite or not a number
    return float_of(bits_of(float_of(magnitude) * 0x1p112f) | special | sign);
}

// To nearest even; what is not a number stays so.
static inline uint16_t float_to_half(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // from halfway between the largest float16 and its successor
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2⁻¹⁴: adding ½ leaves multiples of 2⁻²⁴ in the low bits, rounded
        half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    return static_cast<uint16_t>(half | sign);
}

static inline float bf16_to_float(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }

// To nearest even; what is not a number stays so.
static inline uint16_t float_to_bf16(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace taximeter
