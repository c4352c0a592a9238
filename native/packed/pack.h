// From a file's rows into packed tiles, and back, one row at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "packed/packed_matrix.h"

namespace taximeter {

// By GGUF's name for it: "F32", "Q4_K" and so on. Throws std::invalid_argument.
PackedFormat packed_format_named(std::string_view name);
std::string_view packed_format_name(PackedFormat format) noexcept;

// The shape of a packed matrix, with data still null. Throws std::invalid_argument where k does not fit the
// format, and for sizes that no matrix has.
PackedMatrix packed_shape(PackedFormat format, std::int64_t n, std::int64_t k);

inline std::int64_t packed_bytes(const PackedMatrix& w) { return w.tiles * w.tile_bytes; }

// Bytes of one row of k weights in the file's own layout (GGUF's block types; float formats: k values).
std::int64_t file_row_bytes(PackedFormat format, std::int64_t k);

// Packs tiles tile_begin to tile_end into `to` (w's data, writable; null data in w is allowed). Row r of the file lies at
// rows + r × row_bytes; file layout and packed format are the same type. Any thread may pack any tile.
void pack_tiles(const PackedMatrix& w, const std::uint8_t* rows, std::int64_t row_bytes, std::int64_t tile_begin,
                std::int64_t tile_end, std::uint8_t* to) noexcept;

// Whether no weight of those tiles, packed at `data`, is infinite or not a number.
bool are_finite(const PackedMatrix& w, const std::uint8_t* data, std::int64_t tile_begin, std::int64_t tile_end) noexcept;

// Whether weights are ever quantized to `format`, or only read from files in it.
bool quantizes_to(PackedFormat format);

// One row of k float32 weights → the file layout of `format` (for weights quantized at load: q8_0, q4_0, bf16, f16, f32), with
// GGML's rounding. Throws std::invalid_argument for formats that we only read.
void quantize_file_row(PackedFormat format, const float* weights, std::int64_t k, std::uint8_t* to);

// Row `row` of w as float32 (k values), exactly the file's values: how an embedding is looked up.
void unpack_row(const PackedMatrix& w, std::int64_t row, float* out) noexcept;

}  // namespace taximeter
