// One step as its threads see it: what they share, and how work is cut into phases and tasks. Which thread takes which task
// is chance; what a task computes is not.
//
// Knows nothing of the order of a model's operations, which is forward.cpp's, nor of what becomes of logits, which is head.cpp's.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>

#include "decoder/decoder.h"
#include "threads.h"

namespace taximeter {

// Rows that are multiplied with one stretch of weights before the next stretch comes: their prepared form stays in a core's
// second-level cache, and what a kernel arranges of it, in its scratch memory, for the stretches to come. More of them where
// weights are floats, or are made bf16 for a prompt, which takes long.
constexpr std::int64_t kBlock = 256, kFloatBlock = 512, kLeastBlock = 48;
constexpr std::int64_t kArrangedBytes = kMatmulPackedScratchBytes * 7 / 8, kArrangedGroupBytes = kGroup + 12;  // at most, of int8

// Of so few rows a task reads memory and little else: a longer stretch of it is worth more than threads that end together.
constexpr std::int64_t kReadingRows = 32;
constexpr std::int64_t tasks_per_thread(std::int64_t rows) { return rows <= kReadingRows ? 3 : 6; }
constexpr std::int64_t kMostTaskBytes = 1 << 18;  // of weights: long enough to read, and threads still end together
constexpr std::int64_t kMostSoonBytes = 1 << 17;  // asked for by a thread that waits: a part of its second cache

// Gate and up together: their outputs, 32 or more of each row, are prepared for the next product on the spot.
constexpr std::int64_t kLeastGateTiles = 2, kMostGateTiles = 8;
constexpr std::int64_t gate_tiles(std::int64_t rows, std::int64_t block, std::int64_t tiles, std::int64_t threads) {
    if (rows > kReadingRows) return std::min(rows, block) > kBlock ? kLeastGateTiles : block > kBlock / 2 ? 4 : kMostGateTiles;
    return std::clamp<std::int64_t>(tiles / (6 * threads) / 2 * 2, 4, kMostGateTiles);
}
constexpr std::int64_t kGateValues = kFloatBlock * kLeastGateTiles * kTileRows;

// A step of so few values that every thread does the work on whole rows for itself, in memory of its own: cheaper than
// one thread doing it in a phase more while the others wait.
constexpr std::int64_t kFewValues = 4096;

constexpr std::size_t kGateScratchBytes = 2 * kGateValues * sizeof(float);
static_assert(std::max(kBlock * 4, kBlock / 2 * kMostGateTiles) * kTileRows <= kGateValues && kReadingRows <= kBlock / 2);
constexpr std::size_t kPassScratchBytes = kGateScratchBytes + std::max<std::size_t>(kMatmulPackedScratchBytes, kAttentionScratchBytes);

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Products of the same rows with several matrices, cut into tasks.
struct Product {
    const PackedMatrix* matrix;
    float* out;
    std::int64_t stride;
};

inline bool reads_quantized(const PackedMatrix& w) { return w.format >= kPackedQ4_0; }

class Pass {
public:
    Pass(Decoder& decoder, const KernelTable& kernels, const Step& step, KVCache& cache)
        : decoder_(decoder), shape_(decoder.shape_), work_(decoder.workspace_), kernels_(kernels), step_(step), cache_(cache),
          queries_(shape_.heads * shape_.head_dim), keys_(shape_.kv_heads * shape_.head_dim), heads_width_(queries_ + 2 * keys_),
          apart_(kernels.bf16_units == Bf16Units::bf16_and_quantized_weights && !shape_.bf16_units) {}

    void prepare(int threads);
    void prepare_screen();
    void run(Team& team, int thread, std::uint8_t* scratch) noexcept;
    void finish() noexcept;  // what is left to one thread

private:
    using Layer = Decoder::Layer;

    // Where a level has bf16 units for quantized weights, those serve a prompt, which arithmetic holds up, and int8 serves
    // what is generated, which memory holds up. The two round differently, so it is the token's origin that decides, never
    // how many rows a step happens to have.
    bool reads_bf16(const PackedMatrix& w, bool generated) const noexcept {
        if (w.format == kPackedBF16) return shape_.bf16_units && kernels_.bf16_units != Bf16Units::none;
        return reads_quantized(w) && apart_ && !generated;
    }
    bool reads_f32(const PackedMatrix& w) const noexcept { return !reads_quantized(w) && !reads_bf16(w, false); }

    // The rows as one thread sees them: everybody's, or in a step of few rows its own copy.
    struct Rows {
        float* x;       // the residual stream
        float* normed;
        PreparedBuffer* prepared;
    };

    // Which rows are still worth computing: all, or after the last attention those alone whose logits are asked for. The
    // i-th of them has its products and prepared form at place i, and its residual stream at `at(i)`.
    struct Active {
        std::int64_t count, generated;  // how many, and how many of them, the first ones, count as generated
        const std::int64_t* rows;       // null: all
        std::int64_t at(std::int64_t i) const noexcept { return rows == nullptr ? i : rows[i]; }
    };

    // Where int8 rows have zeros: what becomes queries, keys and values, and logits. There they halve what rounding costs, for
    // one instruction in twelve; in the feed-forward layers, which are most of a pass, they would gain no more.
    static constexpr bool kZerosBeforeHeads = true, kZerosBeforeLogits = true;

    // Rows that are multiplied together, either all generated or none.
    struct RowBlock {
        std::int64_t begin, end;
        bool generated;
    };
    // How many rows of a prompt are a block for a matrix.
    std::int64_t prompt_block(const PackedMatrix& w) const noexcept {
        if (!reads_quantized(w) || kernels_.bf16_units == Bf16Units::bf16_and_quantized_weights) return kFloatBlock;
        return std::clamp(kArrangedBytes / (w.k / kGroup * kArrangedGroupBytes) / 16 * 16, kLeastBlock, kBlock);
    }
    std::int64_t blocks_of(const Active& active, const PackedMatrix& w) const noexcept {
        return ceil_div(active.generated, kBlock) + ceil_div(active.count - active.generated, prompt_block(w));
    }
    RowBlock block_of(const Active& active, const PackedMatrix& w, std::int64_t index) const noexcept {
        const std::int64_t before = ceil_div(active.generated, kBlock), size = prompt_block(w);
        if (index < before) return {index * kBlock, std::min((index + 1) * kBlock, active.generated), true};
        const std::int64_t begin = active.generated + (index - before) * size;
        return {begin, std::min(begin + size, active.count), false};
    }

    // Work on each of the first `count` rows that the next phase's tasks read: shared out now or, in a step of few rows, left
    // for each thread that gets one of those tasks. Gives what `Team::share` is to call before them. `work(row, keeps)`: where
    // every thread works in memory of its own, one of them is told to keep what later phases read where all find it.
    template <typename Work>
    auto each_row(Team& team, std::int64_t count, Work work) noexcept {
        const std::int64_t chunk = std::clamp<std::int64_t>(count / (2 * team.threads()), 1, 16);
        if (!few_)
            share(team, count, chunk, [&](std::int64_t begin, std::int64_t end) noexcept {
                for (std::int64_t row = begin; row < end; ++row) work(row, false);
            });
        return [this, count, work](std::int64_t task) noexcept {
            for (std::int64_t row = 0; few_ && row < count; ++row) work(row, task == 0);
        };
    }

    // A phase of `count` pieces, given out at most `size` at a time.
    template <typename Work, typename Ready = decltype([](std::int64_t) noexcept {})>
    void share(Team& team, std::int64_t count, std::int64_t size, Work&& work, Ready&& ready = {}) noexcept {
        team.share(ceil_div(count, size), ready, [&](std::int64_t task) noexcept {
            work(task * size, std::min((task + 1) * size, count));
        });
    }

    std::int64_t tiles_per_task(std::int64_t tiles, const PackedMatrix& first, const Active& active, std::int64_t threads) const noexcept;
    void reads_soon(Team& team, int thread, const PackedMatrix& w, std::int64_t per_task) const noexcept;
    template <typename Ready>
    void multiply(Team& team, PreparedRows rows, const Active& active, std::initializer_list<Product> products,
                  std::uint8_t* scratch, const Ready& ready) noexcept;
    void multiply_block(const PackedMatrix& w, const PreparedRows& rows, const Active& active, const RowBlock& block,
                        std::int64_t tile, std::int64_t tile_end, float* out, std::int64_t stride, std::uint8_t* scratch) const noexcept;
    void prepare_row(const float* row, std::int64_t k, std::int64_t at, std::int64_t total, PreparedBuffer& to, const Active& active,
                     std::int64_t index, std::initializer_list<const PackedMatrix*> readers, bool zeros = false) const noexcept;
    void add_product(const Rows& rows, const float* x, std::int64_t place, std::int64_t row, const float* post_norm) const noexcept;
    void finish_heads(const Layer& layer, const PagedAttention& job, std::int64_t row, std::int64_t kv_head) const noexcept;
    void attend(Team& team, const Layer& layer, std::uint8_t* scratch) noexcept;
    template <typename Ready>
    void feed_forward(Team& team, const Layer& layer, PreparedRows rows, const Active& active, std::uint8_t* scratch,
                      const Ready& ready) noexcept;
    void head(Team& team, const Rows& mine, const Active& active, const float* x, const float* post_norm, int thread,
              std::uint8_t* scratch) noexcept;
    PagedAttention attention_of(const Layer& layer) const noexcept;
    template <typename Ready, typename See>
    void each_stretch(Team& team, const PackedMatrix& head, PreparedRows rows, const Active& active, std::uint8_t* scratch,
                      const Ready& ready, See&& see) noexcept;
    template <typename Ready>
    void best(Team& team, PreparedRows rows, const Active& active, std::uint8_t* scratch, const Ready& ready) noexcept;
    template <typename Ready>
    void best_screened(Team& team, PreparedRows rows, const Active& active, std::uint8_t* scratch, const Ready& ready) noexcept;
    void note_best(std::uint64_t& best, const float* logits, std::int64_t first_token, std::int64_t count) const noexcept;
    void cap(float* logits, std::int64_t count) const noexcept;
    void note(int thread, Phase phase) noexcept;

    Decoder& decoder_;
    const DecoderShape& shape_;
    Workspace& work_;
    const KernelTable& kernels_;
    const Step& step_;
    KVCache& cache_;
    std::int64_t queries_, keys_, heads_width_;
    bool apart_;  // whether generated rows and those of a prompt are multiplied in different ways
    bool few_ = false;
    bool screened_ = false;             // whether a coarser copy of the head is read first
    std::int64_t copies_to_ = 0;        // up to which tile this step copies the head
    std::atomic<std::int64_t> seen_{0};  // tiles of the head that were read besides the copy
    std::uint64_t coarse_best_[Screen::kMostRows] = {};  // by the copy alone, as of note_best
    std::chrono::steady_clock::time_point noted_{};
};

template <typename Ready>
void Pass::multiply(Team& team, PreparedRows rows, const Active& active, std::initializer_list<Product> products,
                    std::uint8_t* scratch, const Ready& ready) noexcept {
    std::int64_t tiles = 0;
    for (const Product& product : products) tiles += product.matrix->tiles;
    const PackedMatrix& of = *products.begin()->matrix;
    const std::int64_t blocks = blocks_of(active, of), per_task = tiles_per_task(tiles, of, active, team.threads());
    std::int64_t tasks = 0;  // of one block of rows
    for (const Product& product : products) tasks += ceil_div(product.matrix->tiles, per_task);
    ArrangedRows arranged{};
    rows.arranged = &arranged;
    share(team, blocks * tasks, 1, [&](std::int64_t task, std::int64_t) noexcept {
        const RowBlock block = block_of(active, of, task / tasks);
        std::int64_t at = task % tasks;
        for (const Product& product : products) {
            const std::int64_t count = ceil_div(product.matrix->tiles, per_task);
            if (at < count) {
                const std::int64_t tile = at * per_task, tile_end = std::min(tile + per_task, product.matrix->tiles);
                return multiply_block(*product.matrix, rows, active, block, tile, tile_end, product.out, product.stride, scratch);
            }
            at -= count;
        }
    }, ready);
}

}  // namespace taximeter
