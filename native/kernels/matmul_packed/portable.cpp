// Vectors of 16 bytes in the compilers' own extension: SSE2 on the oldest x86-64, NEON on ARM. Products and sums are rounded
// one by one, as there may be no fused instruction. Weights are widened once for all rows of activations: codes to 16-bit
// integers, floats to float32.
#include "matmul_packed.h"

#include <math.h>
#include <string.h>

#include "packed/half.h"
#include "packed/layout.h"

namespace {

using namespace taximeter;

#include "formats.inc"

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));
typedef uint16_t FourHalves __attribute__((vector_size(8)));
typedef uint8_t FourBytes __attribute__((vector_size(4)));
typedef int8_t FourSigned __attribute__((vector_size(4)));

constexpr int kVecs = kTileRows / 4;  // of four rows each
constexpr int kChunk = 32;            // features of a float format that are widened at once
constexpr int64_t kRowsAtOnce = 1024;

template <typename Vector>
inline Vector load(const void* from) {
    Vector a;
    memcpy(&a, from, sizeof a);
    return a;
}

template <typename Vector, typename From>
inline Vector reinterpreted(From from) {
    static_assert(sizeof(Vector) == sizeof(From));
    return load<Vector>(&from);
}

inline Halves eight(uint16_t a) { return Halves{a, a, a, a, a, a, a, a}; }

struct Working {
    Shorts codes[2][8][2][kVecs];  // planes × quads × even and odd features
    Floats weights[kChunk][kVecs];
    Floats acc[kRowsAtOnce][kVecs];
    Floats scale[2][kVecs], minimum[2][kVecs];
    Ints sum[2][kVecs];  // of codes
};
static_assert(sizeof(Working) <= kMatmulPackedScratchBytes);

// Four rows of one quad: sixteen bytes, which are taken as eight pairs, the even features below the odd ones.
template <PackedFormat F>
inline void widen_codes(const uint8_t* group, int q, int v, Working& to) {
    const auto pairs = load<Halves>(group + 64 * (F == kPackedQ8_0 ? q : q / 2) + 16 * v);
    for (int odd = 0; odd < 2; ++odd) {
        const Halves bytes = odd ? pairs >> 8 : pairs;
        if constexpr (F == kPackedQ8_0) {
            for (int plane = 0; plane < 2; ++plane)
                to.codes[plane][q][odd][v] = reinterpreted<Shorts>((plane ? bytes >> 4 : bytes) & 15);
        } else {
            Halves codes = (q % 2 ? bytes >> 4 : bytes) & 15;
            for (int plane = 4; plane < Form<F>::layout.bits; ++plane) {
                const auto word = load<uint16_t>(group + 256 + 64 * (plane - 4) + 8 * q + 2 * v);
                const Halves bit = Halves{1, 4, 16, 64, 256, 1024, 4096, 16384} << odd;
                codes |= reinterpreted<Halves>((eight(word) & bit) != 0) & eight(static_cast<uint16_t>(1 << plane));
            }
            to.codes[0][q][odd][v] = reinterpreted<Shorts>(codes);
        }
    }
}

// half.h's half_to_float, four at a time.
inline Floats widen_halves(const uint8_t* from) {
    const Words halves = __builtin_convertvector(load<FourHalves>(from), Words);
    const Words magnitude = (halves & 0x7fff) << 13, sign = (halves & 0x8000) << 16;
    const Words special = reinterpreted<Words>(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
    const Floats scaled = reinterpreted<Floats>(magnitude) * 0x1p112f;
    return reinterpreted<Floats>(reinterpreted<Words>(scaled) | special | sign);
}

template <PackedFormat F>
inline void widen_scales(const uint8_t* block, int group, int v, Working& to) {
    constexpr float offset = Form<F>::layout.offset;
    const Floats d = widen_halves(block + 8 * v);
    if constexpr (F == kPackedQ6_K) {
        for (int part = 0; part < 2; ++part) {
            const uint8_t* steps = block + 32 + 16 * (2 * group + part) + 4 * v;
            to.scale[part][v] = d * __builtin_convertvector(load<FourSigned>(steps), Floats);
            to.minimum[part][v] = -offset * to.scale[part][v];
        }
    } else if constexpr (Form<F>::block_groups > 1) {
        const uint8_t* steps = block + 64 + 32 * group + 4 * v;
        to.scale[0][v] = d * __builtin_convertvector(load<FourBytes>(steps), Floats);
        to.minimum[0][v] = -(widen_halves(block + 32 + 8 * v) * __builtin_convertvector(load<FourBytes>(steps + 16), Floats));
    } else {
        to.scale[0][v] = d;
        if constexpr (offset != 0.0f) to.minimum[0][v] = -offset * d;
        else to.minimum[0][v] = widen_halves(block + 32 + 8 * v);
    }
}

// One plane of codes times one row's q over some quads. Two neighbouring lanes of 16 bits for each tile row, even and odd
// features apart, cannot overflow: 8 × 31 × 128 and 4 × 63 × 128 are below 2¹⁵.
inline void sum_plane(const Shorts (*codes)[2][kVecs], const int8_t* q, int quads, Ints (&sums)[kVecs]) {
    Shorts acc[2][kVecs] = {};
    for (int i = 0; i < quads; ++i, q += 4)
        for (int odd = 0; odd < 2; ++odd) {
            const int16_t first = q[odd], second = q[odd + 2];
            const Shorts x = {first, second, first, second, first, second, first, second};
            for (int v = 0; v < kVecs; ++v) acc[odd][v] += codes[i][odd][v] * x;
        }
    for (int v = 0; v < kVecs; ++v) {
        const auto even = reinterpreted<Ints>(acc[0][v]), odd = reinterpreted<Ints>(acc[1][v]);
        sums[v] = ((even << 16 >> 16) + (even >> 16)) + ((odd << 16 >> 16) + (odd >> 16));
    }
}

// All planes of a part.
template <PackedFormat F>
inline void sum_part(const Working& w, int part, const int8_t* q, Ints (&sums)[kVecs]) {
    constexpr int quads = Form<F>::part_quads;
    sum_plane(w.codes[0] + part * quads, q + part * quads * 4, quads, sums);
    if constexpr (Form<F>::planes == 2) {
        Ints high[kVecs];
        sum_plane(w.codes[1], q, quads, high);
        for (int v = 0; v < kVecs; ++v) sums[v] += 16 * high[v];
    }
}

template <PackedFormat F>
inline void add_group(const Working& w, const int8_t* q, float d, int32_t z, const float* s, Floats (&acc)[kVecs]) {
    for (int part = 0; part < Form<F>::parts; ++part) {
        Ints sums[kVecs];
        sum_part<F>(w, part, q, sums);
        for (int v = 0; v < kVecs; ++v) {
            acc[v] += __builtin_convertvector(sums[v] + w.sum[part][v] * z, Floats) * w.scale[part][v] * d;
            acc[v] += w.minimum[part][v] * s[part];
        }
    }
}

template <PackedFormat F>
inline void add_codes(const PackedMatrix* w, const uint8_t* tile, const PreparedRows* x, int64_t row, int64_t rows,
                      Working& work) {
    const int64_t groups = x->k / kGroup;
    const float* sums = Form<F>::parts == 2 ? x->s_half : x->s;
    int8_t ones[kGroup];
    memset(ones, 1, sizeof ones);
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* scales = scales_of<F>(w, tile, g / Form<F>::block_groups);
        for (int v = 0; v < kVecs; ++v) {
            for (int q = 0; q < 8; ++q) widen_codes<F>(tile + g * Form<F>::code_bytes, q, v, work);
            widen_scales<F>(scales, static_cast<int>(g % Form<F>::block_groups), v, work);
        }
        for (int part = 0; part < Form<F>::parts; ++part) sum_part<F>(work, part, ones, work.sum[part]);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = (row + r) * groups + g;
            add_group<F>(work, x->q + at * kGroup, x->d[at], x->z == nullptr ? 0 : x->z[at], sums + at * Form<F>::parts, work.acc[r]);
        }
    }
}

// Feature i of four rows.
template <PackedFormat F>
inline Floats widen_floats(const uint8_t* tile, int64_t i, int v) {
    if constexpr (F == kPackedF32) return load<Floats>(tile + 64 * i + 16 * v);
    if constexpr (F == kPackedF16) return widen_halves(tile + 32 * i + 8 * v);
    const auto pairs = load<Words>(tile + 64 * (i / 2) + 16 * v);
    return reinterpreted<Floats>(i % 2 ? pairs & 0xffff0000u : pairs << 16);
}

template <PackedFormat F>
inline void add_floats(const uint8_t* tile, const PreparedRows* x, int64_t row, int64_t rows, Working& work) {
    for (int64_t first = 0; first < x->k; first += kChunk) {
        const int count = static_cast<int>(smaller(kChunk, x->k - first));
        for (int i = 0; i < count; ++i)
            for (int v = 0; v < kVecs; ++v) work.weights[i][v] = widen_floats<F>(tile, first + i, v);
        for (int64_t r = 0; r < rows; ++r) {
            const float* from = x->f32 + (row + r) * x->f32_stride + first;
            Floats acc[kVecs];
            for (int v = 0; v < kVecs; ++v) acc[v] = work.acc[r][v];
            for (int i = 0; i < count; ++i) {
                const Floats value = {from[i], from[i], from[i], from[i]};
                for (int v = 0; v < kVecs; ++v) acc[v] += work.weights[i][v] * value;
            }
            for (int v = 0; v < kVecs; ++v) work.acc[r][v] = acc[v];
        }
    }
}

template <PackedFormat F>
void multiply(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
              int64_t tile_end, float* y, int64_t y_stride, Working& work) {
    for (int64_t row = row_begin; row < row_end; row += kRowsAtOnce) {
        const int64_t rows = smaller(kRowsAtOnce, row_end - row);
        for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
            memset(work.acc, 0, static_cast<size_t>(rows) * sizeof work.acc[0]);
            if constexpr (is_float(F)) add_floats<F>(tile_of(w, tile), x, row, rows, work);
            else add_codes<F>(w, tile_of(w, tile), x, row, rows, work);
            for (int64_t r = 0; r < rows; ++r)
                memcpy(y + (row + r) * y_stride + tile * kTileRows, work.acc[r],
                       static_cast<size_t>(columns_of(w, tile)) * sizeof(float));
        }
    }
}

typedef void (*Multiply)(const PackedMatrix*, const PreparedRows*, int64_t, int64_t, int64_t, int64_t, float*, int64_t,
                         Working&);
constexpr Multiply kMultiply[kPackedFormats] = {
    multiply<kPackedF32>,  multiply<kPackedF16>,  multiply<kPackedBF16>, multiply<kPackedQ4_0>,
    multiply<kPackedQ4_1>, multiply<kPackedQ5_0>, multiply<kPackedQ5_1>, multiply<kPackedQ8_0>,
    multiply<kPackedQ4_K>, multiply<kPackedQ5_K>, multiply<kPackedQ6_K>,
};

// To the nearest integer, halves to even, of what is no further from zero than `most`.
inline int32_t to_whole(float a, float most) {
    const float within = a >= -most ? (a > most ? most : a) : -most;
    constexpr float magic = 12582912.0f;
    return static_cast<int32_t>((within + magic) - magic);
}

void quantize_group(const float* x, int8_t* q, float* d, int32_t* z, float* s, float* s_half) {
    int32_t high = 0, below = 0;  // as integers, numbers above zero keep their order, and what is not a number comes last
    for (int i = 0; i < kGroup; ++i) {
        const auto bits = static_cast<int32_t>(bits_of(x[i])), negative = static_cast<int32_t>(bits_of(x[i]) ^ 0x80000000u);
        high = bits > high ? bits : high;
        below = negative > below ? negative : below;
    }
    const float least = float_of(static_cast<uint32_t>(below));
    // Without z, whichever reaches further.
    const float furthest = float_of(static_cast<uint32_t>(high > below ? high : below));
    *d = z != nullptr ? float_of(static_cast<uint32_t>(high)) / 255.0f + least / 255.0f : furthest / 127.0f;
    const bool some = *d > 0.0f && *d < INFINITY;
    const int32_t zero = some && z != nullptr ? 128 - to_whole(least / *d, 255.0f) : 0;
    if (z != nullptr) *z = zero;
    int half[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
        const int32_t byte = some ? to_whole(x[i] / *d, 512.0f) - zero : 0;
        q[i] = static_cast<int8_t>(byte < -128 ? -128 : byte > 127 ? 127 : byte);
        half[i / 16] += q[i] + zero;
    }
    s_half[0] = *d * static_cast<float>(half[0]);
    s_half[1] = *d * static_cast<float>(half[1]);
    *s = *d * static_cast<float>(half[0] + half[1]);
}

}  // namespace

void matmul_packed_portable(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                            int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    kMultiply[w->format](w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, *static_cast<Working*>(scratch));
}

void quantize_row_portable(const float* x, int64_t k, int8_t* q, float* d, int32_t* z, float* s, float* s_half) noexcept {
    for (int64_t g = 0; g * kGroup < k; ++g) {
        float padded[kGroup] = {};
        memcpy(padded, x + g * kGroup, static_cast<size_t>(smaller(kGroup, k - g * kGroup)) * sizeof(float));
        quantize_group(padded, q + g * kGroup, d + g, z == nullptr ? z : z + g, s + g, s_half + 2 * g);
    }
}

void round_row_portable(const float* x, int64_t k, uint16_t* out) noexcept {
    for (int64_t i = 0; i < k; i += kGroup, out += kBf16TileValues)
        for (int64_t j = 0; j < kGroup; ++j) out[j] = i + j < k ? float_to_bf16(x[i + j]) : uint16_t{0};
}
