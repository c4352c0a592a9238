// The end of a step: logits of those rows whose logits are asked for, or of each the best token alone.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "decoder/pass.h"

namespace taximeter {
namespace {

constexpr std::int64_t kStepsToCopy = 64;    // over which a copy of the head is made, so that no token waits long for it
constexpr std::int64_t kTilesLookedAt = 64;  // by a task, of which few are seen

// A token's number counted down from the last that 32 bits can have, and back.
constexpr std::uint64_t token_from_end(std::uint64_t token) { return UINT32_MAX - (token & UINT32_MAX); }

// A logit's place in the order of floats, moved up to begin with zero.
constexpr std::uint64_t place_from_zero(std::int32_t place) { return static_cast<std::uint64_t>(std::int64_t{place} - INT32_MIN); }

// Of a row's best so far (Pass::note_best) its logit's place, moved up; it only rises while others look.
std::uint64_t place_of(std::uint64_t& best) { return std::atomic_ref<std::uint64_t>(best).load(std::memory_order_relaxed) >> 32; }

// And the token, -1 where its logit is infinite or not a number.
std::int64_t best_token(std::uint64_t best) {
    constexpr float most = std::numeric_limits<float>::max();
    const std::uint64_t place = best >> 32;
    if (place < place_from_zero(place_in_order(-most)) || place > place_from_zero(place_in_order(most))) return -1;
    return static_cast<std::int64_t>(token_from_end(best));
}

}  // namespace

// The last norm and the head, for those rows alone whose logits are asked for.
void Pass::head(Team& team, const Rows& mine, const Active& active, const float* x, const float* post_norm, int thread,
                std::uint8_t* scratch) noexcept {
    const std::int64_t rows = step_.logit_rows, vocab = shape_.vocab, hidden = shape_.hidden;
    const auto ready = each_row(team, rows, [=, this](std::int64_t i, bool) noexcept {
        float* normed = mine.normed + i * hidden;
        add_product(mine, x, i, step_.logit_row[i], post_norm);
        kernels_.rows->rms_norm(mine.x + step_.logit_row[i] * hidden, decoder_.output_norm_, hidden, shape_.rms_eps, normed);
        prepare_row(normed, hidden, 0, hidden, *mine.prepared, active, i, {&decoder_.head_}, kZerosBeforeLogits);
    });
    note(thread, kRowWork);
    const PreparedRows normed = mine.prepared->view(rows, hidden, mine.normed, hidden, kZerosBeforeLogits);
    if (step_.best != nullptr) {
        best(team, normed, active, scratch, ready);
    } else {
        multiply(team, normed, active, {{&decoder_.head_, step_.logits, vocab}}, scratch, ready);
        if (shape_.logit_softcap != 0.0f)
            share(team, rows, 1, [&](std::int64_t row, std::int64_t) noexcept { cap(step_.logits + row * vocab, vocab); });
    }
    note(thread, kHeadProduct);
}

// Logits of a matrix as large as the head, a stretch of tokens at a time: `see(row, some, first token, count)` while they are in
// cache, and they are kept nowhere.
template <typename Ready, typename See>
void Pass::each_stretch(Team& team, const PackedMatrix& head, PreparedRows rows, const Active& active, std::uint8_t* scratch,
                        const Ready& ready, See&& see) noexcept {
    float* logits = reinterpret_cast<float*>(scratch);  // of one task, where a gate and its up would be
    const std::int64_t most_rows = std::min(active.count, kFloatBlock);
    const std::int64_t together = std::min<std::int64_t>(2 * kGateValues / (most_rows * kTileRows), 32);
    const std::int64_t width = together * kTileRows, columns = ceil_div(head.tiles, together);
    ArrangedRows arranged{};
    rows.arranged = &arranged;
    share(team, blocks_of(active, head) * columns, 1, [&](std::int64_t task, std::int64_t) noexcept {
        const RowBlock block = block_of(active, head, task / columns);
        const std::int64_t tile = task % columns * together, tile_end = std::min(tile + together, head.tiles);
        const std::int64_t column = tile * kTileRows, count = std::min(width, shape_.vocab - column);
        multiply_block(head, rows, active, block, tile, tile_end, logits - (block.begin * width + column), width,
                       scratch + kGateScratchBytes);
        for (std::int64_t row = block.begin; row < block.end; ++row) see(row, logits + (row - block.begin) * width, column, count);
    }, ready);
}

// The head where nobody asks for more than the best token.
template <typename Ready>
void Pass::best(Team& team, PreparedRows rows, const Active& active, std::uint8_t* scratch, const Ready& ready) noexcept {
    if (screened_) return best_screened(team, rows, active, scratch, ready);
    each_stretch(team, decoder_.head_, rows, active, scratch, ready,
                 [&](std::int64_t row, float* logits, std::int64_t token, std::int64_t count) noexcept {
                     if (shape_.logit_softcap != 0.0f) cap(logits, count);
                     note_best(work_.best.as<std::uint64_t>()[row], logits, token, count);
                 });
    Screen& screen = decoder_.screen_;
    const std::int64_t copied = screen.copied();
    share(team, copies_to_ - copied, 8, [&](std::int64_t begin, std::int64_t end) noexcept { screen.copy(copied + begin, copied + end); });
}

// The same by way of the coarser copy: first how large a logit of each tile may be at most, and where the largest seems to be, then
// exactly what may be as large as the largest found.
template <typename Ready>
void Pass::best_screened(Team& team, PreparedRows rows, const Active& active, std::uint8_t* scratch, const Ready& ready) noexcept {
    const PackedMatrix& head = decoder_.head_;
    Screen& screen = decoder_.screen_;
    float lengths[Screen::kMostRows];
    bool is_ready = false;
    const auto measure = [&](std::int64_t task) noexcept {
        ready(task);
        is_ready = true;
        for (std::int64_t row = 0; row < active.count; ++row) lengths[row] = Screen::length(rows, row);
    };
    each_stretch(team, screen.coarse(), rows, active, scratch, measure,
                 [&](std::int64_t row, float* logits, std::int64_t token, std::int64_t count) noexcept {
                     note_best(coarse_best_[row], logits, token, count);
                     std::int32_t* most = screen.most() + row * head.tiles + token / kTileRows;
                     const float* doubts = screen.doubts() + token;
                     for (std::int64_t i = 0; i < count; ++i) logits[i] += doubts[i] * lengths[row];
                     for (std::int64_t i = 0; i < count; i += kTileRows)
                         most[i / kTileRows] = kernels_.rows->greatest(logits + i, std::min<std::int64_t>(kTileRows, count - i));
                 });
    ArrangedRows arranged{};
    rows.arranged = &arranged;
    float logits[kTileRows];
    std::int64_t seen = 0;
    const auto see = [&](std::int64_t row, std::int64_t tile) noexcept {
        const std::int64_t token = tile * kTileRows;
        // A kernel addresses its output by row and column of the whole.
        multiply_block(head, rows, active, {row, row + 1, row < active.generated}, tile, tile + 1,
                       logits - (row * kTileRows + token), kTileRows, scratch + kGateScratchBytes);
        note_best(work_.best.as<std::uint64_t>()[row], logits, token, std::min<std::int64_t>(kTileRows, shape_.vocab - token));
        ++seen;
    };
    // Whoever takes part first looks where the best seems to be: what it finds there leaves little else to look at.
    const auto look_there = [&](std::int64_t task) noexcept {
        if (!is_ready) ready(task);
        for (std::int64_t row = 0; row < active.count; ++row)
            see(row, static_cast<std::int64_t>(token_from_end(coarse_best_[row])) / kTileRows);
    };
    share(team, head.tiles, kTilesLookedAt, [&](std::int64_t begin, std::int64_t end) noexcept {
        for (std::int64_t row = 0; row < active.count; ++row)
            for (std::int64_t tile = begin; tile < end; ++tile)
                if (place_from_zero(screen.most()[row * head.tiles + tile]) >= place_of(work_.best.as<std::uint64_t>()[row])) see(row, tile);
    }, look_there);
    seen_.fetch_add(seen, std::memory_order_relaxed);
}

// A row's best so far is one number, so that whichever thread comes when, the greatest logit wins, and of equal ones the
// lowest token: the logit's place in the order of floats above, the token, counted from the end, below.
void Pass::note_best(std::uint64_t& row_best, const float* logits, std::int64_t first_token, std::int64_t count) const noexcept {
    const std::int32_t place = kernels_.rows->greatest(logits, count);
    const std::uint64_t above = place_from_zero(place) << 32;
    const std::atomic_ref<std::uint64_t> best(row_best);
    std::uint64_t seen = best.load(std::memory_order_relaxed);
    if ((above | token_from_end(first_token)) <= seen) return;  // most stretches hold nothing better: no need to look where it is
    std::int64_t at = 0;
    while (place_in_order(logits[at]) != place) ++at;
    const std::uint64_t found = above | token_from_end(first_token + at);
    while (found > seen && !best.compare_exchange_weak(seen, found, std::memory_order_relaxed)) {}
}

void Pass::cap(float* logits, std::int64_t count) const noexcept {
    for (std::int64_t i = 0; i < count; ++i) logits[i] = shape_.logit_softcap * std::tanh(logits[i] / shape_.logit_softcap);
}

// Whether there is a copy of the head to read first, or a part of one to make. A prompt's first token waits for no copy, and units
// that only a prompt's rows are multiplied by read none.
void Pass::prepare_screen() {
    Screen& screen = decoder_.screen_;
    const PackedMatrix& head = decoder_.head_;
    copies_to_ = screen.copied();
    // A cap may make equals of unequal logits.
    if (step_.best == nullptr || step_.logit_rows > Screen::kMostRows || shape_.logit_softcap != 0.0f || !Screen::suits(head)) return;
    const bool is_generated = step_.generated_rows == step_.rows;
    screened_ = screen.is_complete() && (is_generated || !apart_);
    if (screen.is_complete() || !is_generated) return;
    try {
        if (!screen.begun()) screen.begin(head);
    } catch (const std::bad_alloc&) {
        return;  // as fast as before, and the next step tries again
    }
    copies_to_ = std::min(head.tiles, screen.copied() + ceil_div(head.tiles, kStepsToCopy));
}

void Pass::finish() noexcept {
    for (std::int64_t row = 0; step_.best != nullptr && row < step_.logit_rows; ++row)
        step_.best[row] = best_token(work_.best.as<std::uint64_t>()[row]);
    Screen& screen = decoder_.screen_;
    const std::int64_t head = packed_bytes(decoder_.head_), copied = copies_to_ - screen.copied();
    std::int64_t of_head = step_.logit_rows == 0 ? 0 : head;
    if (screened_) of_head = screen.bytes() + std::min(head, seen_.load(std::memory_order_relaxed) * decoder_.head_.tile_bytes);
    decoder_.read_bytes_ = decoder_.pass_bytes_ - head + of_head + copied * decoder_.head_.tile_bytes;
    screen.note_copied(copies_to_);
}

}  // namespace taximeter
