// AMX for int8: quantized weights × more rows than VNNI takes at once (quantized_avx512.inc), with the same bits.
//
// One tile of outputs at a time: a stretch of its weights is unpacked into scratch, where it serves all rows of the pass, up
// to sixteen at a time. Each group's integers have to leave the unit to be scaled, and multiply-adds among tile instructions
// run at half their speed. So the unit takes the whole stretch first, and the multiply-adds follow.
//
// Half groups (q6_k) would leave the unit twice as often; VNNI is faster at these.
#include "matmul_packed.h"

#include <immintrin.h>
#include <string.h>

namespace {

#include "formats_avx512.inc"
#include "quantized_avx512.inc"
#include "tile_unit.inc"

constexpr int kUnitRows = 16;
constexpr int kUnitGroups = 12;  // of a stretch, at most: with its sums and its rows it stays in the first cache

template <int kZeros>
using UnitGroup = GroupInScratch<1, 1, kZeros>;
constexpr int64_t kUnitSumBytes = kUnitRows * 64;  // of a group
constexpr int64_t kUnitScratchBytes = kUnitGroups * (UnitGroup<1>::kBytes + kUnitSumBytes);

// The rows of a pass, in blocks of one size, which differs from pass to pass. The last block begins early enough to be whole,
// and computes some rows a second time.
struct UnitBlocks {
    int64_t rows, count, size;
    explicit UnitBlocks(int64_t rows)
        : rows(rows), count((rows + kUnitRows - 1) / kUnitRows), size((rows + count - 1) / count) {}
    int64_t begin(int64_t index) const { return smaller(index * size, rows - size); }
};

// Calls body<R> with R = the size of a block: more than kFewRows, so more than half of kUnitRows.
template <class Body>
inline void with_unit_rows(int64_t rows, Body body) {
    static_assert(kFewRows == 8 && kUnitRows == 16);
    switch (rows) {
        case 9: return body.template operator()<9>();
        case 10: return body.template operator()<10>();
        case 11: return body.template operator()<11>();
        case 12: return body.template operator()<12>();
        case 13: return body.template operator()<13>();
        case 14: return body.template operator()<14>();
        case 15: return body.template operator()<15>();
        default: return body.template operator()<kUnitRows>();
    }
}

// What happens to a block of R rows. Their integers are read where they were prepared; their scales lie group by group,
// R d's, R s's and, where rows have zeros, R z's.
template <int R, int kZeros>
struct UnitBlock {
    using Group = UnitGroup<kZeros>;
    static constexpr int kScaleBytes = (2 + kZeros) * R * 4;  // of a group

    static void arrange(const PreparedRows* x, int64_t row, int64_t groups, uint8_t* to) {
        for (int64_t g = 0; g < groups; ++g, to += kScaleBytes)
            for (int r = 0; r < R; ++r) {
                memcpy(to + r * 4, x->d + (row + r) * groups + g, 4);
                memcpy(to + (R + r) * 4, x->s + (row + r) * groups + g, 4);
                if constexpr (kZeros) memcpy(to + (2 * R + r) * 4, x->z + (row + r) * groups + g, 4);
            }
    }

    // Tile 0: sums. 1: activations. 2: weights.
    static void configure() {
        TileShapes shapes;
        shapes.set(0, R, 64);
        shapes.set(1, R, kGroup);
        shapes.set(2, kGroup / 4, 64);
        shapes.use();
    }

    // The integer sums of `count` groups, each on top of kMagic.
    static inline void sum_up(const uint8_t* weights, const int8_t* q, int64_t k, int64_t count, uint8_t* sums) {
        alignas(64) int32_t magic[kTileRows];
        for (int32_t& bits : magic) bits = kMagicBits;
        before_tile_load();
        for (int64_t g = 0; g < count; ++g, weights += Group::kBytes, q += kGroup, sums += kUnitSumBytes) {
            _tile_loadd(0, magic, 0);  // the same line for every row
            _tile_loadd(1, q, k);
            _tile_loadd(2, weights, 64);
            _tile_dpbsud(0, 1, 2);
            _tile_stored(0, sums, 64);
        }
    }

    // Adds them, scaled, to the outputs, or begins these. Meanwhile asks for some lines of the next weights with every group.
    static inline void add_scaled(const uint8_t* weights, const uint8_t* sums, const uint8_t* scales, int64_t count,
                                  bool begins, float* outputs, const uint8_t* soon, int64_t lines) {
        __m512 acc[R];
        for (int r = 0; r < R; ++r) acc[r] = begins ? _mm512_setzero_ps() : _mm512_load_ps(outputs + r * kTileRows);
        for (int64_t g = 0; g < count; ++g, weights += Group::kBytes, sums += kUnitSumBytes, scales += kScaleBytes) {
            for (int64_t line = 0; line < lines; ++line, soon += 64) _mm_prefetch(soon, _MM_HINT_T0);
            const Group group{weights};
            __m512i codes;
            if constexpr (kZeros) codes = group.sum(0, 0);
            const __m512 scale = group.scale(0, 0), less_magic = group.less_magic(0, 0), minimum = group.minimum(0, 0);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                __m512i sum = _mm512_load_si512(sums + r * 64);
                if constexpr (kZeros) sum = _mm512_dpwssd_epi32(sum, codes, spread_quad(scales + (2 * R + r) * 4));
                const __m512 product = _mm512_fmadd_ps(_mm512_castsi512_ps(sum), scale, less_magic);
                const __m512 with_scale = _mm512_fmadd_ps(product, spread_f32(scales + r * 4), acc[r]);
                acc[r] = _mm512_fmadd_ps(minimum, spread_f32(scales + (R + r) * 4), with_scale);
            }
        }
        for (int r = 0; r < R; ++r) _mm512_store_ps(outputs + r * kTileRows, acc[r]);
    }
};

template <class F, int R, int kZeros>
inline void unit_pass(const PackedMatrix* w, const PreparedRows* x, int64_t row, UnitBlocks blocks, int64_t tile_begin,
                      int64_t tile_end, float* y, int64_t y_stride, uint8_t* scratch) {
    using Block = UnitBlock<R, kZeros>;
    const int64_t groups = w->k / kGroup, stretches = (groups + kUnitGroups - 1) / kUnitGroups;
    const int64_t even = (groups + stretches - 1) / stretches;
    uint8_t* weights = scratch;
    uint8_t* sums = weights + kUnitGroups * Block::Group::kBytes;
    float* outputs = reinterpret_cast<float*>(scratch + kUnitScratchBytes);
    uint8_t* scales = reinterpret_cast<uint8_t*>(outputs + blocks.count * R * kTileRows);
    if (!are_arranged(x, row, blocks.rows, 1))
        for (int64_t b = 0; b < blocks.count; ++b)
            Block::arrange(x, row + blocks.begin(b), groups, scales + b * groups * Block::kScaleBytes);
    Block::configure();
    const int64_t lines = (w->tile_bytes / 64 + blocks.count * groups - 1) / (blocks.count * groups);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* soon = w->data + (tile + 1) * w->tile_bytes;  // past the last tile it does no harm
        for (int64_t g = 0; g < groups; g += even) {
            const int64_t count = smaller(groups - g, even);
            unpack_stretch<F, 1, kZeros>(w, tile, g, count, weights);
            for (int64_t b = 0; b < blocks.count; ++b, soon += count * lines * 64) {
                Block::sum_up(weights, x->q + (row + blocks.begin(b)) * w->k + g * kGroup, w->k, count, sums);
                Block::add_scaled(weights, sums, scales + (b * groups + g) * Block::kScaleBytes, count, g == 0,
                                  outputs + b * R * kTileRows, soon, lines);
            }
        }
        for (int64_t b = 0; b < blocks.count; ++b)
            for (int r = 0; r < R; ++r)
                _mm512_mask_storeu_ps(y + (row + blocks.begin(b) + r) * y_stride + tile * kTileRows, outputs_of(w, tile),
                                      _mm512_load_ps(outputs + (b * R + r) * kTileRows));
    }
    _tile_release();
}

// The whole call: passes of as many rows as fit into scratch, spread evenly.
template <class F>
struct UnitProduct {
    static void run(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                    int64_t tile_end, float* y, int64_t y_stride, uint8_t* scratch) {
        if constexpr (F::kParts == 1) {
            const int64_t rows = row_end - row_begin, row_bytes = w->k / kGroup * 12 + kTileRows * 4;
            // A pass computes up to a block of rows twice, less one.
            const int64_t fit = (kMatmulPackedScratchBytes - kUnitScratchBytes) / row_bytes - kUnitRows;
            if (fit > kFewRows) {
                const int64_t passes = (rows + fit - 1) / fit, even = (rows + passes - 1) / passes;
                for (int64_t row = row_begin; row < row_end; row += even) {
                    const UnitBlocks blocks(smaller(row_end - row, even));
                    if (blocks.size <= kFewRows)
                        matmul_packed_avx512(w, x, row, row + blocks.rows, tile_begin, tile_end, y, y_stride, scratch);
                    else
                        with_unit_rows(blocks.size, [=]<int R>() {
                            const auto pass = x->z != nullptr ? unit_pass<F, R, 1> : unit_pass<F, R, 0>;
                            pass(w, x, row, blocks, tile_begin, tile_end, y, y_stride, scratch);
                        });
                }
                return;
            }
        }
        matmul_packed_avx512(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
    }
};

}  // namespace

void matmul_packed_amx(const PackedMatrix* w, const PreparedRows* x, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                       int64_t tile_end, float* y, int64_t y_stride, void* scratch) noexcept {
    if (row_end - row_begin <= kFewRows || w->format < kPackedQ4_0)
        return matmul_packed_avx512(w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride, scratch);
    with_format<UnitProduct>(w->format, w, x, row_begin, row_end, tile_begin, tile_end, y, y_stride,
                             static_cast<uint8_t*>(scratch));
}
