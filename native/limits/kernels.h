// Loops that do one thing as fast as a core can: read memory, or multiply and add in registers. One table for each level.
#pragma once

#include <stddef.h>
#include <stdint.h>

// What a loop reads goes round in pieces of this many bytes.
enum { kReadBytes = 512 };

struct LimitKernels {
    // Reads `bytes`, a multiple of kReadBytes, from a 64-byte border on.
    void (*read)(const uint8_t* from, size_t bytes);
    // Each does `rounds` rounds and returns how many operations those were, a multiplication and an addition being two.
    // Null where the level has no unit for it.
    int64_t (*int8)(int64_t rounds);
    int64_t (*bf16)(int64_t rounds);
    int64_t (*f32)(int64_t rounds);
};

extern const struct LimitKernels limits_portable, limits_avx2, limits_avx512, limits_avx512_bf16, limits_amx;
