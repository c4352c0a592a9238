#include "decoder/screen.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "packed/half.h"
#include "packed/layout.h"
#include "packed/pack.h"

namespace taximeter {
namespace {

constexpr int kStep = 8;                        // codes of the head to one of the copy
constexpr int kVectorBytes = 64, kVectors = 8;  // of one group of 8-bit codes
constexpr std::int64_t kCoarseGroupBytes = kPackedLayouts[kPackedQ5_0].code_bytes;
constexpr std::int64_t kScaleBytes = kPackedLayouts[kPackedQ8_0].scale_bytes;
static_assert(kPackedLayouts[kPackedQ8_0].code_bytes == kVectors * kVectorBytes);
static_assert(kPackedLayouts[kPackedQ5_0].scale_bytes == kScaleBytes);
static_assert(kPackedLayouts[kPackedQ8_0].offset == kStep * kPackedLayouts[kPackedQ5_0].offset);

// What rounding may add, in units of |x| × the length of the row's scales. Either product is a chain of sums over G groups
// (matmul_packed.h): a group adds at most offset × scale × Σ|x| ≤ offset × scale × √32 |x of the group|, twice as much before the
// minimum is taken off. So no sum is above M = 3 × offset × √32 in those units, by Cauchy and Schwarz over the groups once more. A
// level without fused multiply-add rounds four times a group, then a group's own factors and the sum with the doubt are rounded
// too: for both products together less than (8 G + 32) × 2⁻²⁴ M.
double slack(std::int64_t groups) {
    const double most = 3.0 * kPackedLayouts[kPackedQ8_0].offset * std::sqrt(static_cast<double>(kGroup));
    return static_cast<double>(8 * groups + 32) * 0x1p-24 * most;
}

// The scales of one group, for sixteen rows: three more in a float16's exponent is eight times as much. Where one has no such
// float16, zero, and its square counts as infinite.
void copy_scales(const std::uint8_t* from, std::uint8_t* to, const std::int32_t (&lost)[kTileRows], double (&squares)[kTileRows],
                 double (&lost_squares)[kTileRows]) {
    constexpr std::uint16_t kMagnitude = 0x7fff, kExponentStep = 0x0400, kInfinite = 0x7c00;
    std::uint16_t halves[kTileRows], eightfold[kTileRows];
    float values[kTileRows];
    std::memcpy(halves, from, sizeof halves);
    bool are_usual = true;  // neither too large nor below what exponents can tell
    for (int row = 0; row < kTileRows; ++row) {
        const int magnitude = halves[row] & kMagnitude;
        are_usual &= magnitude >= kExponentStep && magnitude < kInfinite - 3 * kExponentStep;
        values[row] = half_to_float(halves[row]);
        eightfold[row] = static_cast<std::uint16_t>(halves[row] + 3 * kExponentStep);
    }
    for (int row = 0; row < kTileRows && !are_usual; ++row) {
        const bool fits = (halves[row] & kMagnitude) < kInfinite - 3 * kExponentStep;
        eightfold[row] = float_to_half(fits ? kStep * values[row] : 0.0f);
        if (!fits) squares[row] = std::numeric_limits<double>::infinity();
    }
    std::memcpy(to, eightfold, sizeof eightfold);
    for (int row = 0; row < kTileRows; ++row) {
        const double square = double{values[row]} * double{values[row]};
        squares[row] += square;
        lost_squares[row] += square * lost[row];
    }
}

// A code of the copy: eight of the head's are one, and the last one takes what is above it.
inline std::uint8_t coarser(std::uint8_t code) {
    const auto rounded = static_cast<std::uint8_t>((code >> 3) + (code >> 2 & 1));
    return rounded > 31 ? std::uint8_t{31} : rounded;
}

// The fifth bits of eight codes.
inline std::uint8_t fifth_bits(const std::uint8_t* codes) {
    std::uint64_t eight;
    std::memcpy(&eight, codes, sizeof eight);
    return static_cast<std::uint8_t>((eight >> 4 & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

// One group of a tile. `squares`: of what is lost, summed over the group's features, for each of sixteen rows.
void copy_group(const std::uint8_t* from, std::uint8_t* to, std::int32_t (&squares)[kTileRows]) {
    std::uint8_t codes[kVectors * kVectorBytes];
    std::uint16_t sums[kVectorBytes] = {};
    for (int vector = 0; vector < kVectors; ++vector) {
        const std::uint8_t* head = from + vector * kVectorBytes;
        std::uint8_t* coarse = codes + vector * kVectorBytes;
        for (int i = 0; i < kVectorBytes; ++i) {
            coarse[i] = coarser(head[i]);
            const auto lost = static_cast<std::int16_t>(head[i] - kStep * coarse[i]);
            sums[i] = static_cast<std::uint16_t>(sums[i] + lost * lost);
        }
    }
    for (int pair = 0; pair < kVectors / 2; ++pair)
        for (int i = 0; i < kVectorBytes; ++i)
            to[pair * kVectorBytes + i] = static_cast<std::uint8_t>((codes[2 * pair * kVectorBytes + i] & 15) |
                                                                   (codes[(2 * pair + 1) * kVectorBytes + i] & 15) << 4);
    std::uint8_t* bits = to + kVectors / 2 * kVectorBytes;
    for (int i = 0; i < kVectors * kVectorBytes / 8; ++i) bits[i] = fifth_bits(codes + 8 * i);
    for (int row = 0; row < kTileRows; ++row)
        squares[row] = sums[4 * row] + sums[4 * row + 1] + sums[4 * row + 2] + sums[4 * row + 3];
}

}  // namespace

void Screen::begin(const PackedMatrix& head) {
    coarse_ = packed_shape(kPackedQ5_0, head.n, head.k);
    codes_ = Memory(static_cast<std::size_t>(packed_bytes(coarse_)), Memory::Pages::huge);
    doubts_ = Memory(static_cast<std::size_t>(head.tiles * kTileRows) * sizeof(float), Memory::Pages::huge);
    most_ = Memory(static_cast<std::size_t>(kMostRows * head.tiles) * sizeof(std::int32_t), Memory::Pages::huge);
    coarse_.data = codes_.as();
    head_ = head;  // last: what throws leaves no copy begun
}

void Screen::copy(std::int64_t tile_begin, std::int64_t tile_end) noexcept {
    const std::int64_t groups = head_.k / kGroup;
    const double rounding = slack(groups);
    for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const std::uint8_t* from = head_.data + tile * head_.tile_bytes;
        std::uint8_t* to = codes_.as() + tile * coarse_.tile_bytes;
        double lost[kTileRows] = {}, scales[kTileRows] = {};
        for (std::int64_t group = 0; group < groups; ++group) {
            std::int32_t squares[kTileRows];
            copy_group(from + group * kVectors * kVectorBytes, to + group * kCoarseGroupBytes, squares);
            copy_scales(from + head_.scales_at + group * kScaleBytes, to + coarse_.scales_at + group * kScaleBytes, squares, scales, lost);
        }
        float* doubts = doubts_.as<float>() + tile * kTileRows;
        for (int row = 0; row < kTileRows; ++row) {
            const double doubt = (std::sqrt(lost[row]) + rounding * std::sqrt(scales[row])) * (1.0 + 0x1p-20);
            // Of an infinite one nothing is ruled out.
            doubts[row] = scales[row] < std::numeric_limits<double>::infinity() ? static_cast<float>(doubt)
                                                                                : std::numeric_limits<float>::infinity();
        }
    }
}

std::int64_t Screen::bytes() const noexcept {
    return packed_bytes(coarse_) + head_.tiles * kTileRows * static_cast<std::int64_t>(sizeof(float));
}

float Screen::length(const PreparedRows& rows, std::int64_t row) noexcept {
    const std::int64_t groups = (rows.k + kGroup - 1) / kGroup;
    double squares = 0.0;
    for (std::int64_t group = row * groups; group < (row + 1) * groups; ++group) {
        const std::int32_t zero = rows.z == nullptr ? 0 : rows.z[group];
        std::int64_t sum = 0;
        for (int i = 0; i < kGroup; ++i) {
            const std::int64_t value = rows.q[group * kGroup + i] + zero;
            sum += value * value;
        }
        squares += double{rows.d[group]} * double{rows.d[group]} * static_cast<double>(sum);
    }
    const double length = std::sqrt(squares) * (1.0 + 0x1p-20);
    // Of such a length no product is infinite: no weight of a head is above 2²⁴, and no row longer than 2²⁴ features.
    return length < 0x1p64 ? static_cast<float>(length) : std::numeric_limits<float>::infinity();
}

}  // namespace taximeter
