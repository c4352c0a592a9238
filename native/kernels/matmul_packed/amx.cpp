// AMX: tiles of int8 and bf16. A tile register holds 16 rows × 64 bytes.
#include "matmul_packed.h"

#include <immintrin.h>
#include <string.h>

namespace {

#include "formats_avx512.inc"
#include "quantized_avx512.inc"

// GCC's tile intrinsics do not tell the compiler that they read memory.
inline void before_tile_load() { __asm__ volatile("" ::: "memory"); }

// The shapes of the eight tile registers, in the processor's own form.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    void set(int tile, int64_t tile_rows, int bytes) {
        rows[tile] = static_cast<uint8_t>(tile_rows);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
    void use() const {
        before_tile_load();
        _tile_loadconfig(this);
    }
};

// ---- int8: a block of sixteen rows × two tiles of outputs. To store a tile costs sixteen cycles however few its rows,
// hence whole tiles. Their sums are too many for the vector registers: the unit works a window of groups ahead, and the
// vector side then scales the window's integers for eight rows at a time.

struct AmxBlock {
    static constexpr int kRows = 16, kVectorRows = 8;
    static constexpr int kSumBytes = kRows * 64, kSlotBytes = 2 * kSumBytes;  // a slot: one group's integers
    static constexpr int kWindow = 4, kWindowBytes = kWindow * kSlotBytes;

    template <class F>
    static inline void few_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t rows,
                                int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, uint8_t* scratch) {
        matmul_packed_avx512(w, x, row, row + rows, tile_begin, tile_end, y, y_stride, scratch);
    }

    // Tiles 0 to 3: sums of two groups × two tiles of outputs. 4: activations. 6, 7: weights.
    static void configure() {
        TileShapes shapes;
        for (int sums = 0; sums < 4; ++sums) shapes.set(sums, kRows, 64);
        shapes.set(4, kRows, kGroup);
        shapes.set(6, kGroup / 4, 64);
        shapes.set(7, kGroup / 4, 64);
        shapes.use();
    }

    // Tile registers are named in the instruction, so each of the two stages has its own code.
    template <int kStage, int C>
    [[gnu::always_inline]] static inline void multiply(const uint8_t* codes, const uint8_t* x) {
        _tile_loadd(4, x, kGroup);
        _tile_loadd(6, codes, 64);
        if constexpr (C == 2) _tile_loadd(7, codes + 512, 64);
        if constexpr (kStage == 0) {
            _tile_zero(0);
            _tile_dpbsud(0, 4, 6);
            if constexpr (C == 2) {
                _tile_zero(1);
                _tile_dpbsud(1, 4, 7);
            }
        } else {
            _tile_zero(2);
            _tile_dpbsud(2, 4, 6);
            if constexpr (C == 2) {
                _tile_zero(3);
                _tile_dpbsud(3, 4, 7);
            }
        }
    }
    template <int kStage, int C>
    [[gnu::always_inline]] static inline void put(uint8_t* to) {
        if constexpr (kStage == 0) {
            _tile_stored(0, to, 64);
            if constexpr (C == 2) _tile_stored(1, to + kSumBytes, 64);
        } else {
            _tile_stored(2, to, 64);
            if constexpr (C == 2) _tile_stored(3, to + kSumBytes, 64);
        }
    }

    // Where the groups of a stretch lie.
    using Layout = BlockLayout<kRows, 1>;
    template <int C>
    struct Stretch {
        const uint8_t *weights, *x;
        int64_t groups;
        const uint8_t* weights_of(int64_t g) const { return weights + g * GroupInScratch<C, 1>::kBytes; }
        const uint8_t* x_of(int64_t g) const { return x + g * Layout::kGroupBytes; }
    };

    // The unit's side: a window's integers into the ring. Storing waits for the next product, not for its own.
    template <int C>
    [[gnu::always_inline]] static inline void multiply_window(const Stretch<C>& at, int64_t g, uint8_t* ring) {
        const int64_t left = at.groups - g;
        static_assert(kWindow == 4);
        if (left > 0) multiply<0, C>(at.weights_of(g), at.x_of(g));
        if (left > 1) multiply<1, C>(at.weights_of(g + 1), at.x_of(g + 1));
        if (left > 0) put<0, C>(ring);
        if (left > 2) multiply<0, C>(at.weights_of(g + 2), at.x_of(g + 2));
        if (left > 1) put<1, C>(ring + kSlotBytes);
        if (left > 3) multiply<1, C>(at.weights_of(g + 3), at.x_of(g + 3));
        if (left > 2) put<0, C>(ring + 2 * kSlotBytes);
        if (left > 3) put<1, C>(ring + 3 * kSlotBytes);
    }

    // The vector side: eight rows' integers of one group, scaled and added.
    template <int C>
    [[gnu::always_inline]] static inline void add_group_of(const uint8_t* integers, const Stretch<C>& at, int64_t g,
                                                       int first, __m512 (&acc)[kVectorRows][C]) {
        const GroupInScratch<C, 1> w{at.weights_of(g)};
        const uint8_t* d = at.x_of(g) + Layout::kD + first * 4;
        const uint8_t* s = at.x_of(g) + Layout::kS + first * 4;
#pragma GCC unroll 8
        for (int r = 0; r < kVectorRows; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) {
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(integers + c * kSumBytes + (first + r) * 64));
                const __m512 with_scale =
                    _mm512_fmadd_ps(_mm512_mul_ps(sum, w.scale(c, 0)), spread_f32(d + r * 4), acc[r][c]);
                acc[r][c] = _mm512_fmadd_ps(w.minimum(c, 0), spread_f32(s + r * 4), with_scale);
            }
    }
    template <int C>
    [[gnu::always_inline]] static inline void add_window(const Stretch<C>& at, int64_t g, const uint8_t* ring,
                                                         float* sums) {
        const int64_t end = smaller(g + kWindow, at.groups);
        for (int first = 0; first < kRows; first += kVectorRows) {
            float* to = sums + first * C * 16;
            __m512 acc[kVectorRows][C];
#pragma GCC unroll 8
            for (int r = 0; r < kVectorRows; ++r)
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) acc[r][c] = _mm512_load_ps(to + (r * C + c) * 16);
            const uint8_t* integers = ring;
            for (int64_t i = g; i < end; ++i, integers += kSlotBytes) add_group_of<C>(integers, at, i, first, acc);
#pragma GCC unroll 8
            for (int r = 0; r < kVectorRows; ++r)
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) _mm512_store_ps(to + (r * C + c) * 16, acc[r][c]);
        }
    }

    template <int C, int kParts>
    static void block_stretch(const uint8_t* weights, const uint8_t* x, int64_t count, float* sums) {
        static_assert(kParts == 1);
        const Stretch<C> at{weights, x, count};
        alignas(64) uint8_t ring[2][kWindowBytes];
        before_tile_load();
        multiply_window(at, 0, ring[0]);
        int window = 0;
        for (int64_t g = 0; g < count; g += kWindow, window ^= 1) {
            multiply_window(at, g + kWindow, ring[window ^ 1]);
            add_window(at, g, ring[window], sums);
        }
    }
};

template <class F>
struct QuantizedAmx {
    static void run(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                    int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, uint8_t* scratch) {
        if constexpr (F::kParts == 1) {  // half groups would leave half of the unit idle: slower than vectors
            AmxBlock::configure();
            Quantized<AmxBlock>::Body<F>::run(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
            _tile_release();
        } else {
            matmul_packed_avx512(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
        }
    }
};

#include "bf16_amx.inc"

}  // namespace

void matmul_packed_amx(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                       int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    if (row_begin == row_end) return;
    if (w->format < kPackedQ4_0 || row_end - row_begin <= kBlockRows)
        return matmul_packed_avx512(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
    with_format<QuantizedAmx>(w->format, w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride,
                              static_cast<uint8_t*>(scratch));
}

void matmul_bf16_amx(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                     int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    if (row_begin == row_end) return;
    const Bf16Product product{w, x, row_begin, row_end, y, y_stride, static_cast<uint8_t*>(scratch)};
    Bf16Product::configure();
    if (w->format == kPackedBF16)
        product.run<Bf16Weights>(tile_begin, tile_end);
    else
        with_format<Bf16Quantized>(w->format, product, tile_begin, tile_end);
    _tile_release();
}
