// AVX2 with FMA and F16C. `maddubs` multiplies unsigned codes by signed q and adds neighbours into 16 bits, where a few more
// of them can be added before they could overflow: with q = ±128, eight quads of 4-bit codes, four of 5, two of 6.
#include "matmul_packed.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "packed/half.h"
#include "packed/layout.h"

namespace {

using namespace taximeter;

#include "formats.inc"

constexpr int64_t kRowsAtOnce = 128;

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline __m256 load_halves(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline __m256 load_signed_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

// 32 bits → 32 bytes that are `value` where the bit is set.
inline __m256i bytes_of_bits(const uint8_t* from, char value) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    const __m256i each = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                          2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i picked = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), each), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(picked, bit), _mm256_set1_epi8(value));
}

// Where a kernel reads codes: 32 bytes are one quad of eight rows (`half` 0 or 1 of the tile).

template <PackedFormat F>
struct Packed {
    const uint8_t* group;

    __m256i codes(int plane, int quad, int half) const {
        constexpr int bits = Form<F>::layout.bits;
        const __m256i low = _mm256_set1_epi8(15);
        const int shift = bits == 8 ? plane : quad % 2;
        const __m256i both = load(group + 64 * (bits == 8 ? quad : quad / 2) + 32 * half);
        __m256i codes = _mm256_and_si256(shift ? _mm256_srli_epi16(both, 4) : both, low);
        const uint8_t* word = group + 256 + 8 * quad + 4 * half;
        if constexpr (bits == 5 || bits == 6) codes = _mm256_or_si256(codes, bytes_of_bits(word, 16));
        if constexpr (bits == 6) codes = _mm256_or_si256(codes, bytes_of_bits(word + 64, 32));
        return codes;
    }
};

struct Wide {
    const uint8_t* group;

    __m256i codes(int plane, int quad, int half) const { return load(group + 64 * (8 * plane + quad) + 32 * half); }
};

// The scales and minimums of one group, and where rows have zeros the sums of its codes.
struct Scales {
    __m256 scale[2][2], minimum[2][2];  // parts × halves
    __m256i sum[2][2];
};

// A sum of codes for each of eight rows. Short codes are added as bytes first: none of the parts comes to more than a byte holds.
template <PackedFormat F>
inline __m256i sum_of_codes(const uint8_t* group, int part, int half) {
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i pairs = _mm256_setzero_si256(), bytes = pairs;
    for (int quad = part * Form<F>::part_quads; quad < (part + 1) * Form<F>::part_quads; ++quad)
        if constexpr (Form<F>::layout.bits == 8)
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(load(group + 64 * quad + 32 * half), ones));
        else
            bytes = _mm256_add_epi8(bytes, Packed<F>{group}.codes(0, quad, half));
    if constexpr (Form<F>::layout.bits != 8) pairs = _mm256_maddubs_epi16(bytes, ones);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <PackedFormat F, bool Z>
[[gnu::always_inline]] inline Scales scales(const uint8_t* block, int group, const uint8_t* codes) {
    constexpr float offset = Form<F>::layout.offset;
    Scales to;
    for (int half = 0; half < 2; ++half) {
        if constexpr (Z)
            for (int part = 0; part < Form<F>::parts; ++part) to.sum[part][half] = sum_of_codes<F>(codes, part, half);
        const __m256 d = load_halves(block + 16 * half);
        if constexpr (F == kPackedQ6_K) {
            for (int part = 0; part < 2; ++part) {
                const uint8_t* steps = block + 32 + 16 * (2 * group + part) + 8 * half;
                to.scale[part][half] = _mm256_mul_ps(d, load_signed_bytes(steps));
                to.minimum[part][half] = _mm256_mul_ps(to.scale[part][half], _mm256_set1_ps(-offset));
            }
        } else if constexpr (Form<F>::block_groups > 1) {
            const uint8_t* steps = block + 64 + 32 * group + 8 * half;
            to.scale[0][half] = _mm256_mul_ps(d, load_bytes(steps));
            to.minimum[0][half] = negative(_mm256_mul_ps(load_halves(block + 32 + 16 * half), load_bytes(steps + 16)));
        } else {
            to.scale[0][half] = d;
            to.minimum[0][half] =
                offset != 0.0f ? _mm256_mul_ps(d, _mm256_set1_ps(-offset)) : load_halves(block + 32 + 16 * half);
        }
    }
    return to;
}

// The activations of R rows that a group needs: row r's at r × the stride.
struct Rows {
    const int8_t* q;
    const float* d;
    const int32_t* z;
    const float* s;
    int64_t q_stride, d_stride, s_stride;

    template <PackedFormat F, bool Z>
    static Rows of(const PreparedRows* x, int64_t row, int64_t group) {
        const int64_t groups = x->k / kGroup, parts = Form<F>::parts, at = row * groups + group;
        return {x->q + at * kGroup, x->d + at, Z ? x->z + at : nullptr, (parts == 2 ? x->s_half : x->s) + at * parts, x->k,
                groups, groups * parts};
    }
};

// A sum stays in its register and is added to one product at a time: left alone, GCC makes a tree of eight products and spills
// most of it.
[[gnu::always_inline]] inline void keep(__m256i& sum) { __asm__("" : "+x"(sum)); }
// What is read from here on is read again, not kept from before: there are not enough registers for that.
[[gnu::always_inline]] inline void forget(const int8_t*& from) { __asm__("" : "+r"(from)); }

// One quad of R rows in P planes, from the first one of these on; the first quad begins the sums.
template <int P, int R, typename Source>
[[gnu::always_inline]] inline void add_quad(const Source& source, int first_plane, int quad, bool begins,
                                            const int8_t* rows, int64_t stride, __m256i (&shorts)[P][R][2]) {
    __m256i codes[P][2];
    for (int plane = 0; plane < P; ++plane)
        for (int half = 0; half < 2; ++half) codes[plane][half] = source.codes(first_plane + plane, quad, half);
    for (int r = 0; r < R; ++r) {
        int32_t four;
        memcpy(&four, rows + r * stride + 4 * quad, sizeof four);
        const __m256i q = _mm256_set1_epi32(four);
        for (int plane = 0; plane < P; ++plane)
            for (int half = 0; half < 2; ++half) {
                const __m256i product = _mm256_maddubs_epi16(codes[plane][half], q);
                __m256i& sum = shorts[plane][r][half];
                sum = begins ? product : _mm256_add_epi16(sum, product);
                keep(sum);
            }
    }
}

// One group of one tile for R rows. Z: whether rows have zeros.
template <PackedFormat F, int R, bool Z, typename Source>
[[gnu::always_inline]] inline void add_group(const Source& source, const Scales& w, const Rows& x, __m256 (&acc)[R][2]) {
    constexpr int bits = Form<F>::layout.bits, planes = Form<F>::planes, quads = Form<F>::part_quads;
    constexpr int together = bits == 6 ? 2 : bits == 5 ? 4 : quads;  // quads that 16 bits hold
    constexpr int P = planes * R <= 4 ? planes : 1;                  // planes whose sums the registers hold
#pragma GCC unroll 2
    for (int part = 0; part < Form<F>::parts; ++part) {
        __m256i sums[R][2];
#pragma GCC unroll 4
        for (int begin = part * quads; begin < (part + 1) * quads; begin += together)
#pragma GCC unroll 2
            for (int first_plane = 0; first_plane < planes; first_plane += P) {
                const bool begins = begin == part * quads && first_plane == 0;
                const int8_t* q = x.q;
                if (!begins) forget(q);
                __m256i shorts[P][R][2];
#pragma GCC unroll 8
                for (int quad = begin; quad < begin + together; ++quad)
                    add_quad<P, R>(source, first_plane, quad, quad == begin, q, x.q_stride, shorts);
                for (int plane = 0; plane < P; ++plane)
                    for (int r = 0; r < R; ++r)
                        for (int half = 0; half < 2; ++half) {
                            const __m256i weight = _mm256_set1_epi16(first_plane + plane ? 16 : 1);
                            const __m256i some = _mm256_madd_epi16(shorts[plane][r][half], weight);
                            sums[r][half] = begins && plane == 0 ? some : _mm256_add_epi32(sums[r][half], some);
                        }
            }
        for (int r = 0; r < R; ++r) {
            const __m256 d = _mm256_set1_ps(x.d[r * x.d_stride]), s = _mm256_set1_ps(x.s[r * x.s_stride + part]);
            for (int half = 0; half < 2; ++half) {
                __m256& sum = acc[r][half];
                __m256i whole = sums[r][half];
                if constexpr (Z) {  // a sum of codes is below 2¹³: of its 16 bit halves the upper one is zero
                    const __m256i z = _mm256_set1_epi32(x.z[r * x.d_stride]);
                    whole = _mm256_add_epi32(whole, _mm256_madd_epi16(w.sum[part][half], z));
                }
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), w.scale[part][half]);
                sum = _mm256_fmadd_ps(scaled, d, sum);
                sum = _mm256_fmadd_ps(w.minimum[part][half], s, sum);
            }
        }
    }
}

inline void put(__m256 (&acc)[2], float* y, int columns) {
    if (columns == kTileRows) {
        _mm256_storeu_ps(y, acc[0]);
        _mm256_storeu_ps(y + 8, acc[1]);
        return;
    }
    float all[kTileRows];
    _mm256_storeu_ps(all, acc[0]);
    _mm256_storeu_ps(all + 8, acc[1]);
    memcpy(y, all, static_cast<size_t>(columns) * sizeof(float));
}

// Codes and scales are two streams, each too short for the processor to see far ahead by itself.
constexpr int64_t kCodesAhead = 4096, kScalesAhead = 512;

inline void ask_for(const uint8_t* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
}

template <PackedFormat F, int R, bool Z>
inline void few_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t tile_begin, int64_t tile_end, float* y,
                     int64_t y_stride) {
    constexpr int block_groups = Form<F>::block_groups;
    const int64_t blocks = w->k / Form<F>::layout.block;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* codes = tile_of(w, tile);
        __m256 acc[R][2];
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (int64_t block = 0; block < blocks; ++block) {
            const uint8_t* block_scales = scales_of<F>(w, tile_of(w, tile), block);
            ask_for(block_scales + kScalesAhead, Form<F>::layout.scale_bytes);
            for (int g = 0; g < block_groups; ++g, codes += Form<F>::code_bytes) {
                ask_for(codes + kCodesAhead, Form<F>::code_bytes);
                add_group<F, R, Z>(Packed<F>{codes}, scales<F, Z>(block_scales, g, codes),
                                   Rows::of<F, Z>(x, row, block * block_groups + g), acc);
            }
        }
        for (int r = 0; r < R; ++r) put(acc[r], y + (row + r) * y_stride + tile * kTileRows, columns_of(w, tile));
    }
}

// What many rows share: up to eight groups of a tile, a code in each byte.
struct Working {
    float acc[kRowsAtOnce][kTileRows];
    Scales scales[kSuperBlockGroups];
    uint8_t codes[kSuperBlockGroups][2 * 8 * 64];
};
static_assert(sizeof(Working) <= kMatmulPackedScratchBytes);

template <PackedFormat F, bool Z>
inline void widen(const PackedMatrix* w, const uint8_t* tile, int64_t group, int count, Working& to) {
    for (int i = 0; i < count; ++i) {
        const Packed<F> source{tile + (group + i) * Form<F>::code_bytes};
        for (int plane = 0; plane < Form<F>::planes; ++plane)
            for (int quad = 0; quad < 8; ++quad)
                for (int half = 0; half < 2; ++half)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes[i] + 64 * (8 * plane + quad) + 32 * half),
                                       source.codes(plane, quad, half));
        constexpr int block_groups = Form<F>::block_groups;
        to.scales[i] = scales<F, Z>(scales_of<F>(w, tile, (group + i) / block_groups),
                                    static_cast<int>((group + i) % block_groups), source.group);
    }
}

template <PackedFormat F, int R, bool Z>
inline void add_groups(const Working& w, const PreparedRows* x, int64_t row, int64_t group, int count,
                       float (*sums)[kTileRows]) {
    __m256 acc[R][2];
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) acc[r][half] = _mm256_load_ps(sums[r] + 8 * half);
    for (int i = 0; i < count; ++i) add_group<F, R, Z>(Wide{w.codes[i]}, w.scales[i], Rows::of<F, Z>(x, row, group + i), acc);
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) _mm256_store_ps(sums[r] + 8 * half, acc[r][half]);
}

template <PackedFormat F, bool Z>
inline void many_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t rows, int64_t tile, float* y,
                      int64_t y_stride, Working& work) {
    memset(work.acc, 0, static_cast<size_t>(rows) * sizeof work.acc[0]);
    for (int64_t group = 0; group < w->k / kGroup; group += kSuperBlockGroups) {
        const int count = static_cast<int>(smaller(kSuperBlockGroups, w->k / kGroup - group));
        widen<F, Z>(w, tile_of(w, tile), group, count, work);
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4) add_groups<F, 4, Z>(work, x, row + r, group, count, work.acc + r);
        for (; r < rows; ++r) add_groups<F, 1, Z>(work, x, row + r, group, count, work.acc + r);
    }
    for (int64_t r = 0; r < rows; ++r)
        memcpy(y + (row + r) * y_stride + tile * kTileRows, work.acc[r],
               static_cast<size_t>(columns_of(w, tile)) * sizeof(float));
}

template <PackedFormat F, bool Z>
void multiply_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end, float* y, int64_t y_stride, Working& work) {
    switch (row_end - row_begin) {
        case 0: return;
        case 1: return few_rows<F, 1, Z>(w, x, row_begin, tile_begin, tile_end, y, y_stride);
        case 2: return few_rows<F, 2, Z>(w, x, row_begin, tile_begin, tile_end, y, y_stride);
        case 3: return few_rows<F, 3, Z>(w, x, row_begin, tile_begin, tile_end, y, y_stride);
        case 4: return few_rows<F, 4, Z>(w, x, row_begin, tile_begin, tile_end, y, y_stride);
    }
    for (int64_t row = row_begin; row < row_end; row += kRowsAtOnce)
        for (int64_t tile = tile_begin; tile < tile_end; ++tile)
            many_rows<F, Z>(w, x, row, smaller(kRowsAtOnce, row_end - row), tile, y, y_stride, work);
}

template <PackedFormat F>
void multiply_codes(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                    int64_t tile_end, float* y, int64_t y_stride, Working& work) {
    const auto rows = x->z != nullptr ? multiply_rows<F, true> : multiply_rows<F, false>;
    rows(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, work);
}

// Feature i of eight rows of a float format.
template <PackedFormat F>
inline __m256 weights(const uint8_t* tile, int64_t i, int half) {
    if constexpr (F == kPackedF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(tile + 64 * i + 32 * half));
    if constexpr (F == kPackedF16) return load_halves(tile + 32 * i + 16 * half);
    const __m256i pairs = load(tile + 64 * (i / 2) + 32 * half);
    return _mm256_castsi256_ps(i % 2 ? _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000)))
                                     : _mm256_slli_epi32(pairs, 16));
}

// R rows against T tiles: enough sums at a time to hide what a fused multiply-add takes.
template <PackedFormat F, int R, int T>
inline void float_tiles(const PackedMatrix* w, const float* x, int64_t x_stride, int64_t tile, float* y, int64_t y_stride) {
    __m256 acc[R][T][2];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) acc[r][t][0] = acc[r][t][1] = _mm256_setzero_ps();
    const uint8_t* from = tile_of(w, tile);
    for (int64_t i = 0; i < w->k; ++i)
        for (int t = 0; t < T; ++t) {
            const uint8_t* tile_data = from + t * w->tile_bytes;
            const __m256 first = weights<F>(tile_data, i, 0), second = weights<F>(tile_data, i, 1);
            for (int r = 0; r < R; ++r) {
                const __m256 value = _mm256_set1_ps(x[r * x_stride + i]);
                acc[r][t][0] = _mm256_fmadd_ps(first, value, acc[r][t][0]);
                acc[r][t][1] = _mm256_fmadd_ps(second, value, acc[r][t][1]);
            }
        }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t)
            put(acc[r][t], y + r * y_stride + (tile + t) * kTileRows, columns_of(w, tile + t));
}

template <PackedFormat F, int R, int T>
inline void float_rows(const PackedMatrix* w, const PreparedRows* x, int64_t row, int64_t tile_begin, int64_t tile_end,
                       float* y, int64_t y_stride) {
    const float* from = x->f32 + row * x->f32_stride;
    y += row * y_stride;
    int64_t tile = tile_begin;
    for (; tile + T <= tile_end; tile += T) float_tiles<F, R, T>(w, from, x->f32_stride, tile, y, y_stride);
    for (; tile < tile_end; ++tile) float_tiles<F, R, 1>(w, from, x->f32_stride, tile, y, y_stride);
}

template <PackedFormat F>
void multiply_floats(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                     int64_t tile_end, float* y, int64_t y_stride, Working&) {
    int64_t row = row_begin;
    if (row_end - row >= 6)
        for (int64_t tile = tile_begin; tile < tile_end; ++tile)  // a tile stays in cache while rows pass by
            for (row = row_begin; row + 6 <= row_end; row += 6) float_rows<F, 6, 1>(w, x, row, tile, tile + 1, y, y_stride);
    switch (row_end - row) {
        case 1: return float_rows<F, 1, 4>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 2: return float_rows<F, 2, 2>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 3: return float_rows<F, 3, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 4: return float_rows<F, 4, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
        case 5: return float_rows<F, 5, 1>(w, x, row, tile_begin, tile_end, y, y_stride);
    }
}

typedef void (*Multiply)(const PackedMatrix*, const PreparedRows*, int64_t, int64_t, int64_t, int64_t, float*, int64_t,
                         Working&);
constexpr Multiply kMultiply[kPackedFormats] = {
    multiply_floats<kPackedF32>, multiply_floats<kPackedF16>, multiply_floats<kPackedBF16>, multiply_codes<kPackedQ4_0>,
    multiply_codes<kPackedQ4_1>, multiply_codes<kPackedQ5_0>, multiply_codes<kPackedQ5_1>,  multiply_codes<kPackedQ8_0>,
    multiply_codes<kPackedQ4_K>, multiply_codes<kPackedQ5_K>, multiply_codes<kPackedQ6_K>,
};

// The sum of four 32-bit lanes.
inline int sum_lanes(__m128i a) {
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

// The largest of four vectors of eight and zero. As integers, numbers above zero keep their order, and what is not a number
// comes last.
inline float largest_of(const __m256i (&values)[4]) {
    __m256i most = _mm256_setzero_si256();
    for (const __m256i& some : values) most = _mm256_max_epi32(most, some);
    __m128i largest = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4e));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0xb1));
    return float_of(static_cast<uint32_t>(_mm_cvtsi128_si32(largest)));
}

inline void quantize_group(const float* x, int8_t* q, float* d, int32_t* z, float* s, float* s_half) {
    __m256i values[4], negatives[4];
    for (int i = 0; i < 4; ++i) {
        values[i] = load(x + 8 * i);
        negatives[i] = _mm256_xor_si256(values[i], _mm256_set1_epi32(INT32_MIN));
    }
    const float high = largest_of(values), below = largest_of(negatives);
    // Without z, whichever reaches further; as integers, since what is not a number reaches furthest.
    const uint32_t further = bits_of(high) > bits_of(below) ? bits_of(high) : bits_of(below);
    *d = z != nullptr ? high / 255.0f + below / 255.0f : float_of(further) / 127.0f;
    const bool some = *d > 0.0f && *d < INFINITY;
    const int32_t zero =
        some && z != nullptr ? 128 - static_cast<int32_t>(smaller(_mm_cvtss_si32(_mm_set_ss(below / *d)), 255)) : 0;
    if (z != nullptr) *z = zero;

    const __m256 divisor = _mm256_set1_ps(*d), kept = _mm256_castsi256_ps(_mm256_set1_epi32(some ? -1 : 0));
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) {
        const __m256 scaled = _mm256_and_ps(_mm256_div_ps(_mm256_castsi256_ps(values[i]), divisor), kept);
        whole[i] = _mm256_sub_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(zero));
    }
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3])),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);

    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    const int first = sum_lanes(_mm256_castsi256_si128(sums)) + 16 * zero;
    const int second = sum_lanes(_mm256_extracti128_si256(sums, 1)) + 16 * zero;
    s_half[0] = *d * static_cast<float>(first);
    s_half[1] = *d * static_cast<float>(second);
    *s = *d * static_cast<float>(first + second);
}

}  // namespace

void matmul_packed_avx2(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end,
                        int64_t tile_begin, int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    kMultiply[w->format](w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, *static_cast<Working*>(scratch));
}

void quantize_row_avx2(const float* x, int64_t k, int8_t* q, float* d, int32_t* z, float* s, float* s_half) noexcept {
    const int64_t whole = k / kGroup;
    for (int64_t g = 0; g < whole; ++g) quantize_group(x + g * kGroup, q + g * kGroup, d + g, z == nullptr ? z : z + g, s + g, s_half + 2 * g);
    if (k % kGroup) {
        float padded[kGroup] = {};
        memcpy(padded, x + whole * kGroup, static_cast<size_t>(k % kGroup) * sizeof(float));
        quantize_group(padded, q + whole * kGroup, d + whole, z == nullptr ? z : z + whole, s + whole, s_half + 2 * whole);
    }
}

void round_row_avx2(const float* x, int64_t k, uint16_t* out) noexcept {
    for (int64_t i = 0; i < k; i += kGroup, out += kBf16TileValues)
        for (int64_t j = 0; j < kGroup; ++j) out[j] = i + j < k ? float_to_bf16(x[i + j]) : uint16_t{0};
}
