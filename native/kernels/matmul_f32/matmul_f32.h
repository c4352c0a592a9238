// y = x · wᵀ in float32: x (rows, k), w (n, k), y (rows, n), all row-major.
//
// One order of summation for every output element, whatever the number of rows and wherever a row stands: k is cut into
// parts of kMatmulPart at fixed places; within a part, vector lane i sums the terms k ≡ i in ascending order, a fixed
// tree adds the lanes up, and the parts are added in ascending order.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct MatmulF32 {
    const float* x;
    const float* w;
    float* y;
    int64_t rows, k, n;
};

enum { kMatmulPart = 1024, kMatmulTileRows = 6 };

// A tile of x, aligned and padded: what a kernel needs as scratch.
enum { kMatmulScratchFloats = kMatmulPart * kMatmulTileRows };

// Computes y[row_begin:row_end, n_begin:n_end].
typedef void (*MatmulF32Kernel)(const MatmulF32* job, int64_t row_begin, int64_t row_end, int64_t n_begin, int64_t n_end,
                                float* scratch) noexcept;

void matmul_f32_portable(const MatmulF32*, int64_t, int64_t, int64_t, int64_t, float*) noexcept;
void matmul_f32_avx2(const MatmulF32*, int64_t, int64_t, int64_t, int64_t, float*) noexcept;
void matmul_f32_avx512(const MatmulF32*, int64_t, int64_t, int64_t, int64_t, float*) noexcept;

namespace taximeter {

// Cuts the product into tasks and runs them on the thread pool.
void matmul_f32(MatmulF32Kernel kernel, const MatmulF32& job);

}  // namespace taximeter
