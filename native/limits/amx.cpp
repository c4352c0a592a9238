#include "limits/kernels.h"

#include "simd/avx512.inc"

namespace {
#include "body.inc"

// Full tiles: 16 rows of 64 bytes. 0 to 3 are sums, 4 and 5 meet 6 and 7, as in a product whose operands are all there.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void begin_tiles() {
    const TileShapes shapes;
    __asm__ volatile("" ::: "memory");  // GCC's intrinsic does not say that it reads
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

inline int64_t int8_tiles(int64_t rounds) {
    begin_tiles();
    for (int64_t i = 0; i < rounds; ++i) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_release();
    return rounds * 4 * 16 * 16 * 64 * 2;
}

inline int64_t bf16_tiles(int64_t rounds) {
    begin_tiles();
    for (int64_t i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return rounds * 4 * 16 * 16 * 32 * 2;
}

}  // namespace

const LimitKernels limits_amx{read, int8_tiles, bf16_tiles, f32};
