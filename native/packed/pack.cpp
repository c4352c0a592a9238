// GGUF's blocks, all little-endian, for one row of k weights (d, m: float16; a nibble run gives its low nibbles first):
//   q4_0  d · 16 nibble bytes                     q4_1  d · m · 16 nibble bytes
//   q5_0  d · 32 fifth bits · 16 nibble bytes     q5_1  d · m · 32 fifth bits · 16 nibble bytes
//   q8_0  d · 32 signed bytes
//   q4_k  d · dmin · 12 bytes of scales · 4 × 32 nibble bytes
//   q5_k  d · dmin · 12 bytes of scales · 32 bytes whose bit g is group g's fifth bit · 4 × 32 nibble bytes
//   q6_k  2 × 64 nibble bytes · 2 × 32 bytes of four bit pairs · 16 signed scales · d
#include "packed/pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "packed/half.h"
#include "packed/layout.h"

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr int64_t kMostRows = int64_t{1} << 31, kMostColumns = int64_t{1} << 24;  // sizes in bytes never overflow

template <typename T>
inline T read(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename T>
inline void write(uint8_t* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// Where one row's share of a group goes. Rows come in ascending order, so an even row's nibble starts a byte of the bit words.

inline void put_nibbles(uint8_t* group, int row, const uint32_t (&low)[8]) {
    for (int j = 0; j < 4; ++j) write(group + 64 * j + 4 * row, low[2 * j] | low[2 * j + 1] << 4);
}

inline void put_bits(uint8_t* words, int row, uint32_t bits) {  // bit f belongs to feature f
    uint8_t* to = words + row / 2;
    const int shift = row % 2 * 4;
    for (int q = 0; q < 8; ++q) {
        const uint32_t nibble = bits >> 4 * q & 15u;
        to[8 * q] = static_cast<uint8_t>(shift ? to[8 * q] | nibble << 4 : nibble);
    }
}

// 32 features whose codes' low four bits are the low nibbles (shift 0) or the high ones (shift 4) of 32 bytes.
inline void nibble_words(const uint8_t* from, int shift, uint32_t (&low)[8]) {
    for (int q = 0; q < 8; ++q) low[q] = read<uint32_t>(from + 4 * q) >> shift & 0x0f0f0f0fu;
}

// 16 bytes: low nibbles are features 0 to 15, high nibbles 16 to 31.
inline void split_words(const uint8_t* from, uint32_t (&low)[8]) {
    for (int q = 0; q < 4; ++q) {
        const uint32_t word = read<uint32_t>(from + 4 * q);
        low[q] = word & 0x0f0f0f0fu;
        low[q + 4] = word >> 4 & 0x0f0f0f0fu;
    }
}

// Bit `shift` of each of 32 bytes, as one word.
inline uint32_t gathered_bits(const uint8_t* from, int shift) {
    uint32_t bits = 0;
    for (int q = 0; q < 8; ++q) {
        const uint32_t ones = read<uint32_t>(from + 4 * q) >> shift & 0x01010101u;
        bits |= (ones * 0x10204080u >> 28) << 4 * q;
    }
    return bits;
}

// One block of one row: its codes into groups, its scales into the scale stream.
template <PackedFormat F>
inline void pack_block(const uint8_t* from, int row, uint8_t* codes, uint8_t* scales) {
    constexpr PackedLayout layout = kPackedLayouts[F];
    uint32_t low[8];
    if constexpr (F == kPackedQ8_0) {
        write(scales + 2 * row, read<uint16_t>(from));
        for (int q = 0; q < 8; ++q) write(codes + 64 * q + 4 * row, read<uint32_t>(from + 2 + 4 * q) ^ 0x80808080u);
    } else if constexpr (layout.block == kGroup) {
        constexpr bool has_minimum = F == kPackedQ4_1 || F == kPackedQ5_1;
        constexpr int bits_at = has_minimum ? 4 : 2, nibbles_at = bits_at + (layout.bits == 5 ? 4 : 0);
        write(scales + 2 * row, read<uint16_t>(from));
        if (has_minimum) write(scales + 32 + 2 * row, read<uint16_t>(from + 2));
        split_words(from + nibbles_at, low);
        put_nibbles(codes, row, low);
        if (layout.bits == 5) put_bits(codes + 256, row, read<uint32_t>(from + bits_at));
    } else if constexpr (F == kPackedQ6_K) {
        write(scales + 2 * row, read<uint16_t>(from + 208));
        for (int i = 0; i < 16; ++i) scales[32 + 16 * i + row] = from[192 + i];
        for (int g = 0; g < 8; ++g, codes += layout.code_bytes) {
            const int half = g / 4, part = g % 4;
            nibble_words(from + 64 * half + 32 * (part % 2), part / 2 * 4, low);
            put_nibbles(codes, row, low);
            const uint8_t* pairs = from + 128 + 32 * half;
            put_bits(codes + 256, row, gathered_bits(pairs, 2 * part));
            put_bits(codes + 320, row, gathered_bits(pairs, 2 * part + 1));
        }
    } else {  // q4_k, q5_k
        write(scales + 2 * row, read<uint16_t>(from));
        write(scales + 32 + 2 * row, read<uint16_t>(from + 2));
        const uint8_t* six = from + 4;  // 6 bits each; bytes 8 to 11 hold two nibbles, whose top bits sit above the first eight
        for (int g = 0; g < 8; ++g) {
            uint8_t* to = scales + 64 + 32 * g + row;
            to[0] = g < 4 ? six[g] & 63 : (six[g + 4] & 15) | (six[g - 4] >> 2 & 48);
            to[16] = g < 4 ? six[g + 4] & 63 : six[g + 4] >> 4 | (six[g] >> 2 & 48);
        }
        const uint8_t* nibbles = from + (F == kPackedQ5_K ? 48 : 16);
        for (int g = 0; g < 8; ++g, codes += layout.code_bytes) {
            nibble_words(nibbles + 32 * (g / 2), g % 2 * 4, low);
            put_nibbles(codes, row, low);
            if (F == kPackedQ5_K) put_bits(codes + 256, row, gathered_bits(from + 16, g));
        }
    }
}

template <PackedFormat F>
void pack_tile(const PackedMatrix& w, const uint8_t* rows, int64_t row_bytes, int count, uint8_t* to) {
    constexpr PackedLayout layout = kPackedLayouts[F];
    if constexpr (is_float(F)) {
        // bf16 goes in pairs of features, which are one 32-bit value like a float32.
        using Value = std::conditional_t<F == kPackedF16, uint16_t, uint32_t>;
        constexpr int64_t step = F == kPackedBF16 ? 2 : 1;
        const int64_t whole = w.k / step;
        for (int64_t i = 0; i < whole; ++i)
            for (int row = 0; row < count; ++row)
                write(to + (i * kTileRows + row) * sizeof(Value), read<Value>(rows + row * row_bytes + i * sizeof(Value)));
        if (w.k % step)  // the other half of the pair was zeroed
            for (int row = 0; row < count; ++row)
                write(to + (whole * kTileRows + row) * 4, read<uint16_t>(rows + row * row_bytes + whole * 4));
    } else {
        constexpr int64_t code_bytes = int64_t{layout.code_bytes} * (layout.block / kGroup);
        for (int64_t block = 0; block < w.k / layout.block; ++block) {
            const uint8_t* from = rows + block * layout.file_block_bytes;
            uint8_t* codes = to + block * code_bytes;
            uint8_t* scales = to + w.scales_at + block * layout.scale_bytes;
            for (int row = 0; row < count; ++row) pack_block<F>(from + row * row_bytes, row, codes, scales);
        }
    }
}

using PackTile = void (*)(const PackedMatrix&, const uint8_t*, int64_t, int, uint8_t*);
constexpr PackTile kPackTile[kPackedFormats] = {
    pack_tile<kPackedF32>,  pack_tile<kPackedF16>,  pack_tile<kPackedBF16>, pack_tile<kPackedQ4_0>,
    pack_tile<kPackedQ4_1>, pack_tile<kPackedQ5_0>, pack_tile<kPackedQ5_1>, pack_tile<kPackedQ8_0>,
    pack_tile<kPackedQ4_K>, pack_tile<kPackedQ5_K>, pack_tile<kPackedQ6_K>,
};

// Bytes of a tile that hold something; what is left up to tile_bytes is padding.
int64_t used_bytes(const PackedMatrix& w) {
    const PackedLayout& layout = kPackedLayouts[w.format];
    if (is_float(w.format)) return (w.format == kPackedBF16 ? w.k + w.k % 2 : w.k) * layout.code_bytes;
    return w.scales_at + w.k / layout.block * layout.scale_bytes;
}

// Whether no value of a run has all bits of its exponent set. No way out half way: the loop becomes vectors.
template <typename Value, Value kExponent>
bool all_finite(const uint8_t* values, int64_t count) {
    Value any = 0;
    for (int64_t i = 0; i < count; ++i)
        any |= static_cast<Value>((read<Value>(values + i * static_cast<int64_t>(sizeof(Value))) & kExponent) == kExponent);
    return any == 0;
}

// The value closest to x, halves away from zero, within ± most. Not a number gives -most.
inline int rounded(float x, float most) {
    const float within = x >= -most ? (x > most ? most : x) : -most;
    const int whole = static_cast<int>(within);
    const float rest = within - static_cast<float>(whole);
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

// The weight of largest magnitude in a group, the first of several; one that is not a number counts as the largest.
inline float extreme(const float* x) {
    float most = x[0];
    for (int i = 1; i < kGroup; ++i)
        if ((bits_of(x[i]) & 0x7fffffffu) > (bits_of(most) & 0x7fffffffu)) most = x[i];
    return most;
}

void quantize_q8_0(const float* x, uint8_t* to) {
    const float d = float_of(bits_of(extreme(x)) & 0x7fffffffu) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    write(to, float_to_half(d));
    for (int i = 0; i < kGroup; ++i) to[2 + i] = static_cast<uint8_t>(rounded(x[i] * inverse, 127.0f));
}

void quantize_q4_0(const float* x, uint8_t* to) {
    const float d = extreme(x) / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    write(to, float_to_half(d));
    const auto code = [inverse](float value) {  // cut off after the half is added, as GGML does; 16 becomes 15
        const float shifted = value * inverse + 8.5f;
        return static_cast<unsigned>(shifted >= 0.0f ? (shifted > 15.0f ? 15.0f : shifted) : 0.0f);
    };
    for (int i = 0; i < 16; ++i) to[2 + i] = static_cast<uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
}

// The features of one packed group, for one row, as unsigned codes.
void unpack_codes(const uint8_t* group, int bits, int row, uint8_t (&codes)[kGroup]) {
    for (int f = 0; f < kGroup; ++f) {
        const int q = f / 4, at = 4 * row + f % 4;
        if (bits == 8) {
            codes[f] = group[64 * q + at];
            continue;
        }
        unsigned code = group[64 * (q / 2) + at] >> q % 2 * 4 & 15;
        for (int plane = 4; plane < bits; ++plane)
            code |= (group[256 + 64 * (plane - 4) + 8 * q + at / 8] >> at % 8 & 1u) << plane;
        codes[f] = static_cast<uint8_t>(code);
    }
}

void unpack_floats(const PackedMatrix& w, const uint8_t* tile, int row, float* out) {
    for (int64_t i = 0; i < w.k; ++i) {
        if (w.format == kPackedF32) out[i] = read<float>(tile + (i * kTileRows + row) * 4);
        else if (w.format == kPackedF16) out[i] = half_to_float(read<uint16_t>(tile + (i * kTileRows + row) * 2));
        else out[i] = bf16_to_float(read<uint16_t>(tile + (i / 2 * kTileRows + row) * 4 + i % 2 * 2));
    }
}

constexpr std::string_view kNames[kPackedFormats] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                                     "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

}  // namespace

PackedFormat packed_format_named(std::string_view name) {
    for (int format = 0; format < kPackedFormats; ++format)
        if (kNames[format] == name) return static_cast<PackedFormat>(format);
    throw std::invalid_argument("there is no weight format " + std::string(name));
}

std::string_view packed_format_name(PackedFormat format) noexcept { return kNames[format]; }

PackedMatrix packed_shape(PackedFormat format, int64_t n, int64_t k) {
    if (format < 0 || format >= kPackedFormats) throw std::invalid_argument("there is no such packed format");
    const PackedLayout& layout = kPackedLayouts[format];
    if (n < 1 || n > kMostRows || k < 1 || k > kMostColumns)
        throw std::invalid_argument("a matrix of " + std::to_string(n) + " × " + std::to_string(k) + " weights");
    if (k % layout.block)
        throw std::invalid_argument("rows of " + std::to_string(k) + " weights are not whole blocks of " +
                                    std::to_string(layout.block));
    PackedMatrix w{};
    w.n = n;
    w.k = k;
    w.format = format;
    w.tiles = (n + kTileRows - 1) / kTileRows;
    w.scales_at = is_float(format) ? 0 : k / kGroup * layout.code_bytes;
    w.tile_bytes = (used_bytes(w) + 63) / 64 * 64;
    return w;
}

int64_t file_row_bytes(PackedFormat format, int64_t k) {
    return k / kPackedLayouts[format].block * kPackedLayouts[format].file_block_bytes;
}

void pack_tiles(const PackedMatrix& w, const uint8_t* rows, int64_t row_bytes, int64_t tile_begin, int64_t tile_end,
                uint8_t* to) noexcept {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t row = tile * kTileRows;
        const int count = static_cast<int>(std::min<int64_t>(kTileRows, w.n - row));
        uint8_t* at = to + tile * w.tile_bytes;
        // Whole tiles are written all over but for the padding, which may begin within the last pair of an odd bf16 row.
        const int64_t written = count < kTileRows ? 0 : std::max<int64_t>(0, used_bytes(w) - 64);
        std::memset(at + written, 0, static_cast<size_t>(w.tile_bytes - written));
        kPackTile[w.format](w, rows + row * row_bytes, row_bytes, count, at);
    }
}

bool are_finite(const PackedMatrix& w, const uint8_t* data, int64_t tile_begin, int64_t tile_end) noexcept {
    const PackedLayout& layout = kPackedLayouts[w.format];
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* at = data + tile * w.tile_bytes;
        const int64_t bytes = used_bytes(w);
        if (w.format == kPackedF32) {
            if (!all_finite<uint32_t, 0x7f800000>(at, bytes / 4)) return false;
        } else if (w.format == kPackedBF16) {
            if (!all_finite<uint16_t, 0x7f80>(at, bytes / 2)) return false;
        } else if (w.format == kPackedF16) {
            if (!all_finite<uint16_t, 0x7c00>(at, bytes / 2)) return false;
        } else {  // codes are finite, and so is their product with finite scales: d of every block, and m where there is one
            const int64_t halves = layout.offset ? kTileRows : 2 * kTileRows;
            for (int64_t block = w.scales_at; block < bytes; block += layout.scale_bytes)
                if (!all_finite<uint16_t, 0x7c00>(at + block, halves)) return false;
        }
    }
    return true;
}

bool quantizes_to(PackedFormat format) {
    return is_float(format) || format == kPackedQ8_0 || format == kPackedQ4_0;
}

void quantize_file_row(PackedFormat format, const float* weights, int64_t k, uint8_t* to) {
    if (k % kPackedLayouts[format].block) throw std::invalid_argument("a row that is not whole blocks");
    switch (format) {
        case kPackedF32: std::memcpy(to, weights, static_cast<size_t>(k) * sizeof(float)); return;
        case kPackedF16:
            for (int64_t i = 0; i < k; ++i) write(to + 2 * i, float_to_half(weights[i]));
            return;
        case kPackedBF16:
            for (int64_t i = 0; i < k; ++i) write(to + 2 * i, float_to_bf16(weights[i]));
            return;
        case kPackedQ8_0:
            for (int64_t i = 0; i < k / kGroup; ++i) quantize_q8_0(weights + kGroup * i, to + 34 * i);
            return;
        case kPackedQ4_0:
            for (int64_t i = 0; i < k / kGroup; ++i) quantize_q4_0(weights + kGroup * i, to + 18 * i);
            return;
        default: throw std::invalid_argument("weights are quantized at load to q8_0 or q4_0 only");
    }
}

void unpack_row(const PackedMatrix& w, int64_t index, float* out) noexcept {
    const PackedLayout& layout = kPackedLayouts[w.format];
    const uint8_t* tile = w.data + index / kTileRows * w.tile_bytes;
    const int row = static_cast<int>(index % kTileRows);
    if (is_float(w.format)) return unpack_floats(w, tile, row, out);
    for (int64_t group = 0; group < w.k / kGroup; ++group, out += kGroup) {
        uint8_t codes[kGroup];
        unpack_codes(tile + group * layout.code_bytes, layout.bits, row, codes);
        const int64_t groups = layout.block / kGroup;
        const int g = static_cast<int>(group % groups);
        const uint8_t* scales = tile + w.scales_at + group / groups * layout.scale_bytes;
        float scale = half_to_float(read<uint16_t>(scales + 2 * row));
        if (w.format == kPackedQ6_K) {
            for (int f = 0; f < kGroup; ++f) {
                const auto step = static_cast<std::int8_t>(scales[32 + 16 * (2 * g + f / 16) + row]);
                out[f] = static_cast<float>(codes[f] - layout.offset) * (static_cast<float>(step) * scale);
            }
        } else if (layout.offset) {
            for (int f = 0; f < kGroup; ++f) out[f] = static_cast<float>(codes[f] - layout.offset) * scale;
        } else {
            float minimum = half_to_float(read<uint16_t>(scales + 32 + 2 * row));
            if (layout.block > kGroup) {
                scale *= static_cast<float>(scales[64 + 32 * g + row]);
                minimum *= -static_cast<float>(scales[64 + 32 * g + 16 + row]);
            }
            for (int f = 0; f < kGroup; ++f) out[f] = static_cast<float>(codes[f]) * scale + minimum;
        }
    }
}

}  // namespace taximeter
