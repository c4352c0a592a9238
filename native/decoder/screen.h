// A coarser copy of a head with 8-bit codes. Where nothing but the greatest logit is asked for, it is read instead of the head: it
// says which tokens cannot have it, and of the head itself only the others are read. What is found is the same to the bit.
//
// A code c of q8_0 becomes c / 8, rounded: q5_0 with a scale eight times as large. Of token v let W be the head's row and Q the
// copy's, x the row of activations that both are multiplied with (the same int8 form). Then by Cauchy and Schwarz
//
//     W·x ≤ Q·x + |W - Q| |x|
//
// and `doubt(v)`, which is a little more than |W - Q|, also covers what rounding adds to either side (screen.cpp). A token whose
// Q·x + doubt(v) |x| is below a logit that is known cannot be the best.
#pragma once

#include <cstdint>

#include "kernels/matmul_packed/matmul_packed.h"
#include "memory.h"
#include "packed/packed_matrix.h"

namespace taximeter {

class Screen {
public:
    // Of more rows arithmetic is what takes the time, and each has tokens of its own left over.
    static constexpr std::int64_t kMostRows = 3;

    // Whether there is something to gain from a copy of such a head.
    static bool suits(const PackedMatrix& head) noexcept { return head.format == kPackedQ8_0; }

    // Makes room for a copy of `head`, which has to stay where it is. Throws std::bad_alloc.
    void begin(const PackedMatrix& head);
    bool begun() const noexcept { return head_.data != nullptr; }

    // Copies the head's tiles tile_begin to tile_end. Any thread may copy any tile.
    void copy(std::int64_t tile_begin, std::int64_t tile_end) noexcept;

    // How far the copy has come, tile by tile. Only a complete one is read.
    std::int64_t copied() const noexcept { return copied_; }
    void note_copied(std::int64_t tiles) noexcept { copied_ = tiles; }
    bool is_complete() const noexcept { return begun() && copied_ == head_.tiles; }

    const PackedMatrix& coarse() const noexcept { return coarse_; }
    const float* doubts() const noexcept { return doubts_.as<float>(); }  // one for each row of every tile
    std::int32_t* most() noexcept { return most_.as<std::int32_t>(); }  // kMostRows × tiles: place_in_order of what a logit is at most
    std::int64_t bytes() const noexcept;                  // that a pass reads of the copy

    // A little more than |x| for one of those rows, or infinity where sums with it might leave the range of floats.
    static float length(const PreparedRows& rows, std::int64_t row) noexcept;

private:
    PackedMatrix head_{}, coarse_{};
    Memory codes_, doubts_, most_;
    std::int64_t copied_ = 0;
};

}  // namespace taximeter
