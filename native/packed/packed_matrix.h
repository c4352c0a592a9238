// A weight matrix (n output features × k input features) as the kernels read it: the file's own quantized values, moved
// into tiles of sixteen rows. Plain C, so that the sources of every level may include it.
//
// One tile is two streams, each 64-byte aligned: the codes of all groups of 32 input features, then the scales of all
// groups. Rows past n are zeros in scales and codes. A weight is  code × scale + minimum  with an unsigned code.
//
//   codes of one group, for 16 rows ("quad" q = the four features 4q … 4q+3 of the group, 0 ≤ q < 8)
//     4 bit   4 × 64 bytes: byte 4·row + i of vector j has quad 2j's feature i in its low nibble and quad 2j+1's in the high
//     5 bit   the same, then 8 × 64 bits, one word for each quad: bit 4·row + i is the fifth bit
//     6 bit   the same, then 8 more words with the sixth bits
//     8 bit   8 × 64 bytes: byte 4·row + i of vector q is the code (a signed value + 128)
//   scales, always for 16 rows at a time
//     q4_0 q5_0 q8_0   per group: 16 × f16 d.            scale = d, minimum = −offset × d (offset 8, 16, 128)
//     q4_1 q5_1        per group: 16 × f16 d, 16 × f16 m. scale = d, minimum = m
//     q4_k q5_k        per super-block of 8 groups: 16 × f16 d, 16 × f16 dmin, then per group 16 × u8 s, 16 × u8 t.
//                      scale = d × s, minimum = −(dmin × t)
//     q6_k             per super-block of 8 groups: 16 × f16 d, then per half group (16 features) 16 × i8 s.
//                      scale = d × s (one for each half group), minimum = −32 × scale
//   float formats have one stream and no groups
//     f32 f16          feature by feature: 16 values (one per row)
//     bf16             pair by pair of features (an odd last one is padded with zero): 16 rows × 2 values
#pragma once

#include <stdint.h>

enum PackedFormat {
    kPackedF32, kPackedF16, kPackedBF16,
    kPackedQ4_0, kPackedQ4_1, kPackedQ5_0, kPackedQ5_1, kPackedQ8_0,
    kPackedQ4_K, kPackedQ5_K, kPackedQ6_K,
    kPackedFormats
};

enum { kTileRows = 16, kGroup = 32, kSuperBlockGroups = 8 };

struct PackedMatrix {
    const uint8_t* data;   // tile after tile
    int64_t n, k;          // k is a multiple of 32 for quantized formats, of 256 for the K formats
    int64_t tiles;         // ceil(n / 16)
    int64_t tile_bytes;    // a multiple of 64
    int64_t scales_at;     // offset of the scales within a tile
    enum PackedFormat format;
};
