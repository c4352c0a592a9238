// y = x · wᵀ for packed weights. x comes prepared, once for all matrices that read it.
//
// What one output is, exactly, at every level with fused multiply-add, however many rows are computed together:
//   quantized weights, by `matmul`: x is int8 with a scale and perhaps a zero for every group of 32, x ≈ d × (q + z).
//                  acc = 0; for every group g in ascending order (q6_k: every half group)
//                  acc = fma(float(Σ code·(q + z)) · scale, d, acc);  acc = fma(minimum, s, acc)
//              where Σ is exact in integers, d the row's scale of the group and s = d × Σ (q + z) (over the group, or half group)
//   float weights, by `matmul`: acc = 0; for every feature in ascending order acc = fma(w, x, acc)
//   any weights that a level's `matmul_bf16` takes: w = fma(code, scale, minimum) and x, both rounded to bf16, are multiplied
//              by units made for it, which add in float32, in an order that is the unit's own and the same for every row
// So a row's result never depends on the other rows, and integer levels agree with each other bit for bit.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "packed/packed_matrix.h"

// Rows rounded to bf16 lie in tiles of sixteen rows × 32 features, which is what tile units load: all tiles of rows 0 to 15,
// then those of 16 to 31 and so on. The last tiles are padded in both directions, with zeros past a row's end.
enum { kBf16TileRows = 16, kBf16TileValues = kBf16TileRows * kGroup };

static inline int64_t bf16_steps(int64_t k) { return (k + kGroup - 1) / kGroup; }
static inline int64_t bf16_row_at(int64_t row, int64_t k) {  // where a row's first value lies; the next 32 are a tile further
    return row / kBf16TileRows * bf16_steps(k) * kBf16TileValues + row % kBf16TileRows * kGroup;
}

// Which rows a thread has arranged for a kernel in scratch memory, so that the next call finds them there: the same rows, with
// the same scratch memory, which nothing else has touched since. No rows: none.
struct ArrangedRows {
    int64_t row, rows, parts;
};

// Rows of activations in the forms that kernels want; a form that no reader needs is null.
struct PreparedRows {
    int64_t rows, k;
    const int8_t* q;      // rows × k_padded (k rounded up to 32, the rest standing for zero)
    const float* d;       // rows × k_padded / 32
    const int32_t* z;     // rows × k_padded / 32; null: all zero
    const float* s;       // rows × k_padded / 32: d × sum of the group's q + z
    const float* s_half;  // rows × k_padded / 16: d × sum of the half group's q + z
    const float* f32;     // rows × f32_stride
    int64_t f32_stride;
    const uint16_t* bf16; // in tiles
    struct ArrangedRows* arranged;  // kept by the kernels of a thread, or null
};

// A thread's own working memory for one call, 64-byte aligned.
enum { kMatmulPackedScratchBytes = 1 << 18 };

// y[r][16·tile … ] for rows row_begin to row_end and tiles tile_begin to tile_end. y points at row 0's output 0; only outputs
// below w->n are written. Row r lies at y + r × y_stride. For a `matmul_bf16`, row_begin is a multiple of kBf16TileRows.
typedef void (*MatmulPackedKernel)(const struct PackedMatrix* w, const struct PreparedRows* x, int64_t row_begin,
                                   int64_t row_end, int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride,
                                   void* scratch) noexcept;

// One row of k floats into its int8 form, padded to a multiple of 32 with what stands for zero.
//
// Without z: d = max|x| / 127, q = x / d rounded to nearest even (d = 0: all zero).
//
// With z, the 256 codes are spread from the least value of a group, or zero, to its largest, or zero: where one large value stands
// alone on its side, steps are half as wide. d = high / 255 + below / 255, where `below` is how far the least lies below zero;
// z = 128 - below / d, and q = x / d - z, the quotients rounded to nearest even, that of z held to 255 and q within a byte.
// Zero stays zero. Where d is zero or no finite number, q and z are zero.
typedef void (*QuantizeRowKernel)(const float* x, int64_t k, int8_t* q, float* d, int32_t* z, float* s, float* s_half) noexcept;

// One row of k floats rounded to bf16 (nearest even; not-a-number stays one) and padded with zeros to a multiple of 32;
// `out` is the row's place in its first tile.
typedef void (*RoundRowKernel)(const float* x, int64_t k, uint16_t* out) noexcept;

#define TAXIMETER_MATMUL_PACKED(level)                                                                          \
    void matmul_packed_##level(const struct PackedMatrix*, const struct PreparedRows*, int64_t, int64_t, int64_t, \
                               int64_t, float*, int64_t, void*) noexcept;                                       \
    void quantize_row_##level(const float*, int64_t, int8_t*, float*, int32_t*, float*, float*) noexcept;       \
    void round_row_##level(const float*, int64_t, uint16_t*) noexcept;
TAXIMETER_MATMUL_PACKED(portable)
TAXIMETER_MATMUL_PACKED(avx2)
TAXIMETER_MATMUL_PACKED(avx512)
#undef TAXIMETER_MATMUL_PACKED

// Where a level has more than the one before it.
#define TAXIMETER_PRODUCT(name)                                                                                        \
    void name(const struct PackedMatrix*, const struct PreparedRows*, int64_t, int64_t, int64_t, int64_t, float*, int64_t, \
              void*) noexcept;
TAXIMETER_PRODUCT(matmul_packed_amx)         // all weights: matmul_packed_avx512, and a faster way for many rows
TAXIMETER_PRODUCT(matmul_bf16_avx512_bf16)   // bf16 weights
TAXIMETER_PRODUCT(matmul_bf16_amx)           // bf16 and quantized weights
#undef TAXIMETER_PRODUCT
