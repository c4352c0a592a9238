// The numbers behind packed_matrix.h, one line per format. Constants only: sources of every level include this.
#pragma once

#include "packed/packed_matrix.h"

namespace taximeter {

struct PackedLayout {
    int block;             // weights that share the file's block, and the unit of `scale_bytes`
    int file_block_bytes;  // one block of one row in the file
    int bits;              // of a code; 0 for float formats
    int code_bytes;        // of one group, 16 rows (float formats: of one block)
    int scale_bytes;       // of one block, 16 rows
    int offset;            // what an unsigned code exceeds the value by; 0 where the file has minimums
};

constexpr PackedLayout kPackedLayouts[kPackedFormats] = {
    {1, 4, 0, 16 * 4, 0, 0},                                 // f32
    {1, 2, 0, 16 * 2, 0, 0},                                 // f16
    {1, 2, 0, 16 * 2, 0, 0},                                 // bf16
    {32, 18, 4, 4 * 64, 32, 8},                              // q4_0
    {32, 20, 4, 4 * 64, 64, 0},                              // q4_1
    {32, 22, 5, 4 * 64 + 8 * 8, 32, 16},                     // q5_0
    {32, 24, 5, 4 * 64 + 8 * 8, 64, 0},                      // q5_1
    {32, 34, 8, 8 * 64, 32, 128},                            // q8_0
    {256, 144, 4, 4 * 64, 2 * 32 + 8 * (16 + 16), 0},        // q4_k
    {256, 176, 5, 4 * 64 + 8 * 8, 2 * 32 + 8 * (16 + 16), 0},  // q5_k
    {256, 210, 6, 4 * 64 + 2 * 8 * 8, 32 + 16 * 16, 32},     // q6_k
};

static constexpr bool is_float(PackedFormat format) { return kPackedLayouts[format].bits == 0; }

}  // namespace taximeter
