// AMX: quantized and bf16 weights as bf16, by tile units. A tile register holds 16 rows × 64 bytes.
//
// Two tiles of outputs at a time: a stretch of their weights is rounded to bf16 into scratch, where it serves all rows, 32 at
// a time; the first 32 are multiplied while it is being rounded. The activations of the others are loaded past the nearest
// cache, which that stretch fills. The unit keeps 32 rows × 32 outputs of sums, and a group of 32 features is one step of it:
// the even features of the group are summed up, the odd ones too, and both together are added to the sum of the groups before.
#include "matmul_packed.h"

#include <immintrin.h>
#include <string.h>

namespace {

#include "formats_avx512.inc"
#include "tile_unit.inc"

constexpr int64_t kAheadSteps = 8;        // so early packed memory is asked for
constexpr int64_t kStepBytes = 1024;      // of sixteen outputs: sixteen pairs of features
constexpr int64_t kStretchSteps = 20;     // what is rounded at a time, at most: two tiles of it fit the nearest cache
constexpr int64_t kBf16BlockRows = 2 * kBf16TileRows;
constexpr int64_t kBf16Sums = 2 * kTileRows;  // outputs side by side
constexpr int64_t kBf16MostRows = 512;        // whose sums fit into scratch, where they are needed there
static_assert(2 * kStretchSteps * kStepBytes + kBf16MostRows * kBf16Sums * 4 <= kMatmulPackedScratchBytes);

// One byte of each four, and nothing else.
inline __m512i byte_of_four(__m512i fours, int byte) {
    constexpr int kElse = static_cast<int>(0x80808000);  // zeros
    return _mm512_shuffle_epi8(fours, _mm512_add_epi32(_mm512_set4_epi32(kElse + 12, kElse + 8, kElse + 4, kElse),
                                                       _mm512_set1_epi32(byte)));
}

// Sixteen outputs × features (2i, 2i + 1), rounded to nearest, a half away from zero.
inline __m512i rounded_pair(__m512 even, __m512 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_add_epi32(_mm512_castps_si512(even), half);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_mask_alignr_epi8(high, 0x3333333333333333, low, low, 2);  // low's upper halves become the lower ones
}

// How a step of a tile's weights comes to lie in scratch memory.
struct Bf16Weights {
    static inline void round(const PackedMatrix* w, const uint8_t* tile, int64_t step, uint8_t* to) {
        const int64_t there = smaller(kStepBytes, (w->k + 1) / 2 * 64 - step * kStepBytes);
        memcpy(to, tile + step * kStepBytes, static_cast<size_t>(there));
        memset(to + there, 0, static_cast<size_t>(kStepBytes - there));
    }
    static inline void fetch(const PackedMatrix*, const uint8_t*, int64_t) {}
};

template <class F>
struct RoundedWeights {
    static inline void fetch(const PackedMatrix* w, const uint8_t* tile, int64_t g) {
        for (int i = 0; i < F::kCodeBytes; i += 64) _mm_prefetch(tile + g * F::kCodeBytes + i, _MM_HINT_T0);
        _mm_prefetch(tile + w->scales_at + g * (F::kScaleBytes / kSuperBlockGroups), _MM_HINT_T0);
    }
    static inline void round(const PackedMatrix* w, const uint8_t* tile, int64_t g, uint8_t* to) {
        const __m512i byte = _mm512_set1_epi32(255);
        __m512i codes[8];
        F::codes(tile + g * F::kCodeBytes, codes);
        const auto scales = F::scales(tile + w->scales_at, g);
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
            const int part = quad * F::kParts / 8;
            const auto value = [&](__m512i code) {
                return _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scales.scale[part], scales.minimum[part]);
            };
            const __m512 a = value(_mm512_and_si512(codes[quad], byte));
            const __m512 b = value(byte_of_four(codes[quad], 1));
            const __m512 c = value(byte_of_four(codes[quad], 2));
            const __m512 d = value(_mm512_srli_epi32(codes[quad], 24));
            _mm512_store_si512(to + quad * 128, rounded_pair(a, b));
            _mm512_store_si512(to + quad * 128 + 64, rounded_pair(c, d));
        }
    }
};

struct Bf16Product {
    const PackedMatrix* w;
    const PreparedRows* x;
    int64_t row_begin, row_end;
    float* y;
    int64_t y_stride;
    uint8_t* scratch;

    // Tiles 0 to 3: sums of the upper and the lower sixteen rows × two tiles of outputs. 4, 5: activations. 6, 7: weights.
    // Rows that do not exist are computed like the others, and left where they are.
    static void configure() {
        TileShapes shapes;
        for (int tile = 0; tile < 8; ++tile) shapes.set(tile, 16, 64);
        shapes.use();
    }

    // Adds `steps` of weights to the sums of a block at `to` (in bytes from row to row), or begins them. `round(step)` puts a
    // step's weights into scratch, if they are not yet there: one step ahead, so that vector and tile units work together.
    template <int C, bool kLower, bool kRounds, class Round>
    static inline void block(const uint8_t* weights, int64_t steps, const uint16_t* upper, const uint16_t* lower, bool begins,
                             float* to, int64_t stride, Round round) {
        float* below = to + kBf16TileRows * (stride / 4);
        if (begins) {
            _tile_zero(0);
            if constexpr (C == 2) _tile_zero(1);
            if constexpr (kLower) _tile_zero(2);
            if constexpr (C == 2 && kLower) _tile_zero(3);
        } else {
            _tile_loadd(0, to, stride);
            if constexpr (C == 2) _tile_loadd(1, to + kTileRows, stride);
            if constexpr (kLower) _tile_loadd(2, below, stride);
            if constexpr (C == 2 && kLower) _tile_loadd(3, below + kTileRows, stride);
        }
        if constexpr (kRounds) round(0);
        for (int64_t step = 0; step < steps; ++step) {
            if constexpr (kRounds) {
                if (step + 1 < steps) round(step + 1);
                before_tile_load();
            }
            _tile_loadd(6, weights + step * kStepBytes, 64);
            if constexpr (kRounds)
                _tile_loadd(4, upper + step * kBf16TileValues, 64);
            else
                _tile_stream_loadd(4, upper + step * kBf16TileValues, 64);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (C == 2) {
                _tile_loadd(7, weights + (steps + step) * kStepBytes, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (kLower) {
                if constexpr (kRounds)
                    _tile_loadd(5, lower + step * kBf16TileValues, 64);
                else
                    _tile_stream_loadd(5, lower + step * kBf16TileValues, 64);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (C == 2) _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, to, stride);
        if constexpr (C == 2) _tile_stored(1, to + kTileRows, stride);
        if constexpr (kLower) _tile_stored(2, below, stride);
        if constexpr (C == 2 && kLower) _tile_stored(3, below + kTileRows, stride);
    }

    // The sums go straight to y, except where a block has fewer rows or outputs than the unit computes.
    template <class Weights, int C>
    void tiles(int64_t tile, int64_t rows_from, int64_t rows_to) const {
        const int64_t steps = bf16_steps(w->k), stretches = (steps + kStretchSteps - 1) / kStretchSteps;
        const int64_t even = (steps + stretches - 1) / stretches;
        float* kept = reinterpret_cast<float*>(scratch + 2 * kStretchSteps * kStepBytes);
        const bool whole_tiles = (tile + C) * kTileRows <= w->n;
        for (int64_t step = 0; step < steps; step += even) {
            const int64_t count = smaller(steps - step, even);
            const auto round = [=, this](int64_t at) {
                // Behind the last step of these tiles comes the first one of the next.
                const int64_t here = step + at, later = here + kAheadSteps;
                for (int c = 0; c < C; ++c) {
                    const uint8_t* from = w->data + (tile + c) * w->tile_bytes;
                    Weights::fetch(w, later < steps ? from : from + C * w->tile_bytes, later < steps ? later : later - steps);
                    Weights::round(w, from, here, scratch + (c * count + at) * kStepBytes);
                }
            };
            using Round = decltype(round);
            for (int64_t row = rows_from; row < rows_to; row += kBf16BlockRows) {
                const int64_t rows = rows_to - row;
                const uint16_t* upper = x->bf16 + bf16_row_at(row, w->k) + step * kBf16TileValues;
                const uint16_t* lower = upper + steps * kBf16TileValues;
                const bool two = rows > kBf16TileRows, whole = whole_tiles && rows >= (two ? 2 : 1) * kBf16TileRows;
                float* to = whole ? y + row * y_stride + tile * kTileRows : kept + (row - rows_from) * kBf16Sums;
                const int64_t stride = (whole ? y_stride : kBf16Sums) * static_cast<int64_t>(sizeof(float));
                const auto multiply = row == rows_from ? (two ? block<C, true, true, Round> : block<C, false, true, Round>)
                                                       : (two ? block<C, true, false, Round> : block<C, false, false, Round>);
                multiply(scratch, count, upper, lower, step == 0, to, stride, round);
                if (!whole && step + count == steps) hand_over(tile, C, row, smaller(rows, kBf16BlockRows), to);
            }
        }
    }

    void hand_over(int64_t tile, int count, int64_t row, int64_t rows, const float* sums) const {
        before_tile_load();  // nor that they write it
        for (int64_t r = 0; r < rows; ++r)
            for (int c = 0; c < count; ++c)
                _mm512_mask_storeu_ps(y + (row + r) * y_stride + (tile + c) * kTileRows, outputs_of(w, tile + c),
                                      _mm512_load_ps(sums + r * kBf16Sums + c * kTileRows));
    }

    template <class Weights>
    void run(int64_t tile_begin, int64_t tile_end) const {
        for (int64_t row = row_begin; row < row_end; row += kBf16MostRows) {
            const int64_t end = smaller(row_end, row + kBf16MostRows);
            int64_t tile = tile_begin;
            for (; tile + 2 <= tile_end; tile += 2) tiles<Weights, 2>(tile, row, end);
            if (tile < tile_end) tiles<Weights, 1>(tile, row, end);
        }
    }
};

template <class F>
struct Bf16Quantized {
    static void run(const Bf16Product product, int64_t tile_begin, int64_t tile_end) {
        product.run<RoundedWeights<F>>(tile_begin, tile_end);
    }
};

}  // namespace

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
