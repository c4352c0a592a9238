// One step, from token ids to the last layer's rows: every thread of the pool runs Pass::run, a phase for each kind of work.
#include <algorithm>

#include "decoder/pass.h"

namespace taximeter {

// Everything that may allocate.
void Pass::prepare(int threads) {
    work_.reach(step_.rows, shape_);
    few_ = step_.rows * shape_.hidden <= kFewValues;
    if (few_) work_.reach_private(threads, step_.rows, shape_);
    if (step_.best != nullptr) std::fill_n(work_.best.as<std::uint64_t>(), step_.logit_rows, std::uint64_t{0});
    prepare_screen();
    const std::int32_t furthest = *std::max_element(step_.positions, step_.positions + step_.rows);
    const Layer* everywhere = nullptr;
    const Layer* sliding = nullptr;
    for (const Layer& layer : decoder_.layers_) (layer.sliding ? sliding : everywhere) = &layer;
    if (everywhere != nullptr) {
        work_.rotary_everywhere.reach(furthest, shape_.turns_everywhere);
        work_.plan_everywhere.cut(attention_of(*everywhere), threads);
    }
    if (sliding != nullptr) {
        work_.rotary_sliding.reach(furthest, shape_.turns_sliding);
        work_.plan_sliding.cut(attention_of(*sliding), threads);
    }
    if (decoder_.profiling_) noted_ = std::chrono::steady_clock::now();
}

PagedAttention Pass::attention_of(const Layer& layer) const noexcept {
    PagedAttention job{};
    job.q = work_.heads.as<float>();
    job.q_stride = heads_width_;
    job.out = work_.attended.as<float>();
    job.out_stride = queries_;
    job.cache = cache_.layer(layer.group, layer.group_layer);
    job.block_stride = cache_.groups()[layer.group].block_stride;
    job.format = cache_.format();
    job.block_tables = step_.block_tables[layer.group];
    job.max_blocks = step_.max_blocks;
    job.row_seq = step_.row_seq;
    job.row_pos = step_.positions;
    job.rows = step_.rows;
    job.heads = shape_.heads;
    job.kv_heads = shape_.kv_heads;
    job.head_dim = shape_.head_dim;
    job.block_tokens = cache_.block_tokens();
    job.window = layer.sliding ? shape_.window : 0;
    job.scale = shape_.attention_scale;
    return job;
}

void Pass::run(Team& team, int thread, std::uint8_t* scratch) noexcept {
    const std::int64_t rows = step_.rows, hidden = shape_.hidden;
    Rows mine{work_.x.as<float>(), work_.normed.as<float>(), &work_.narrow};
    if (few_) {
        // Where the pool has grown since the memory was made: the others do without.
        if (static_cast<std::size_t>(thread) >= work_.own.size()) return;
        Workspace::Private& own = work_.own[static_cast<std::size_t>(thread)];
        mine = {own.x.as<float>(), own.normed.as<float>(), &own.prepared};
    }
    // The residual stream is everybody's between phases. In a step of few rows those who work on a row read it here and keep
    // what they made of it there, until that is where it is read; else it changes where it is.
    float* x = work_.x.as<float>();
    float* next_x = few_ ? work_.next_x.as<float>() : x;

    const float* post_norm = nullptr;  // of the product that waits to be added to the residual stream
    Active active{rows, apart_ ? step_.generated_rows : 0, nullptr};
    for (const Layer& layer : decoder_.layers_) {
        const auto& w = layer.matrices;
        const bool first = &layer == &decoder_.layers_.front();
        // Every row, from the product before it to the forms that the products behind it read.
        const auto settle = [&](const float* norm, bool embeds, bool zeros, auto... readers) noexcept {
            const float* from = x;
            float* to = next_x;
            std::swap(x, next_x);
            return each_row(team, active.count, [=, this](std::int64_t i, bool keeps) noexcept {
                const std::int64_t row = active.at(i);
                float* own = mine.x + row * hidden;
                if (embeds) {
                    unpack_row(decoder_.embedding_, step_.token_ids[row], own);
                    if (shape_.embedding_scale != 1.0f) kernels_.rows->scale(own, shape_.embedding_scale, hidden);
                } else {
                    add_product(mine, from, i, row, post_norm);
                }
                if (keeps) std::copy_n(own, hidden, to + row * hidden);
                kernels_.rows->rms_norm(own, norm, hidden, shape_.rms_eps, mine.normed + i * hidden);
                prepare_row(mine.normed + i * hidden, hidden, 0, hidden, *mine.prepared, active, i, {readers...}, zeros);
            });
        };

        const auto before_heads = settle(layer.vectors[kAttentionNorm], first, kZerosBeforeHeads, &w[kQuery], &w[kKey], &w[kValue]);
        note(thread, kRowWork);
        float* heads = work_.heads.as<float>();
        const auto alone = [&](const PackedMatrix& m) noexcept {
            reads_soon(team, thread, m, tiles_per_task(m.tiles, m, active, team.threads()));
        };
        alone(w[kAttentionOut]);
        multiply(team, mine.prepared->view(rows, hidden, mine.normed, hidden, kZerosBeforeHeads), active,
                 {{&w[kQuery], heads, heads_width_}, {&w[kKey], heads + queries_, heads_width_},
                  {&w[kValue], heads + queries_ + keys_, heads_width_}}, scratch, before_heads);
        note(thread, kQkvProduct);

        const PagedAttention job = attention_of(layer);
        // Sixteen rows of one head are one stretch of the cache: two threads seldom write the same line of it.
        share(team, shape_.kv_heads * rows, std::min<std::int64_t>(rows, 16), [&](std::int64_t begin, std::int64_t end) noexcept {
            for (std::int64_t i = begin; i < end; ++i) finish_heads(layer, job, i % rows, i / rows);
        });
        note(thread, kHeads);
        if (&layer == &decoder_.layers_.back()) {
            if (step_.logit_rows == 0) return;  // the middle of a prompt: its keys and values are all that was wanted
            const std::int64_t* const end = step_.logit_row + step_.logit_rows;
            active = {step_.logit_rows, std::lower_bound(step_.logit_row, end, active.generated) - step_.logit_row, step_.logit_row};
        }
        attend(team, layer, scratch);
        note(thread, kAttention);

        const float* attended = work_.attended.as<float>();
        const auto before_out = each_row(team, active.count, [=, this, &w](std::int64_t i, bool) noexcept {
            prepare_row(attended + active.at(i) * queries_, queries_, 0, queries_, *mine.prepared, active, i, {&w[kAttentionOut]});
        });
        if (active.rows != nullptr && reads_f32(w[kAttentionOut])) {
            share(team, active.count, 1, [&](std::int64_t i, std::int64_t) noexcept {
                std::copy_n(attended + active.at(i) * queries_, queries_, heads + i * queries_);
            });
            attended = heads;  // which nobody needs any more
        }
        note(thread, kRowWork);
        reads_soon(team, thread, w[kGate], gate_tiles(active.count, prompt_block(w[kGate]), w[kGate].tiles, team.threads()));
        multiply(team, mine.prepared->view(active.count, queries_, attended, queries_), active,
                 {{&w[kAttentionOut], work_.product.as<float>(), hidden}}, scratch, before_out);
        note(thread, kOutProduct);
        post_norm = layer.vectors[kPostAttentionNorm];

        const auto before_gate = settle(layer.vectors[kFeedForwardNorm], false, false, &w[kGate], &w[kUp]);
        note(thread, kRowWork);
        alone(w[kDown]);
        feed_forward(team, layer, mine.prepared->view(active.count, hidden, mine.normed, hidden), active, scratch, before_gate);
        note(thread, kFeedForward);
        if (&layer != &decoder_.layers_.back()) {
            const auto& next = (&layer)[1].matrices;
            reads_soon(team, thread, next[kQuery], tiles_per_task(next[kQuery].tiles + next[kKey].tiles + next[kValue].tiles,
                                                                  next[kQuery], active, team.threads()));
        } else {
            reads_soon(team, thread, decoder_.head_, 32);
        }
        multiply(team, work_.wide.view(active.count, shape_.ff, work_.gated.as<float>(), shape_.ff), active,
                 {{&w[kDown], work_.product.as<float>(), hidden}}, scratch, [](std::int64_t) noexcept {});
        note(thread, kDownProduct);
        post_norm = layer.vectors[kPostFeedForwardNorm];
    }
    head(team, mine, active, x, post_norm, thread, scratch);
}

// Part [at, at + k) of a row of `total` values, in the forms that its readers want. `at` is a multiple of a group. Rows that
// are not generated have their bf16 form at a place of their own, so that it begins with a whole tile.
void Pass::prepare_row(const float* row, std::int64_t k, std::int64_t at, std::int64_t total, PreparedBuffer& to, const Active& active,
                       std::int64_t index, std::initializer_list<const PackedMatrix*> readers, bool zeros) const noexcept {
    bool quantized = false, bf16 = false;
    for (const PackedMatrix* reader : readers) {
        const bool rounds = reads_bf16(*reader, index < active.generated);
        bf16 |= rounds;
        quantized |= reads_quantized(*reader) && !rounds;
    }
    if (quantized) {
        const std::int64_t groups = ceil_div(total, kGroup), group = index * groups + at / kGroup;
        kernels_.quantize_row(row, k, to.q.as<std::int8_t>() + group * kGroup, to.d.as<float>() + group,
                              zeros ? to.z.as<std::int32_t>() + group : nullptr, to.s.as<float>() + group, to.s_half.as<float>() + 2 * group);
    }
    if (bf16)
        kernels_.round_row(row, k, to.bf16.as<std::uint16_t>() + bf16_row_at(index - active.generated, total) +
                                       at / kGroup * kBf16TileValues);
}

void Pass::multiply_block(const PackedMatrix& w, const PreparedRows& rows, const Active& active, const RowBlock& block,
                          std::int64_t tile, std::int64_t tile_end, float* out, std::int64_t stride,
                          std::uint8_t* scratch) const noexcept {
    if (!reads_bf16(w, block.generated)) return kernels_.matmul(&w, &rows, block.begin, block.end, tile, tile_end, out, stride, scratch);
    const std::int64_t first = active.generated;
    *rows.arranged = {};  // the other kernel has its own use for the scratch memory
    kernels_.matmul_bf16(&w, &rows, block.begin - first, block.end - first, tile, tile_end, out + first * stride, stride, scratch);
}

// How many tiles of `tiles` a task of a product takes.
std::int64_t Pass::tiles_per_task(std::int64_t tiles, const PackedMatrix& first, const Active& active, std::int64_t threads) const noexcept {
    const std::int64_t blocks = blocks_of(active, first), even = tiles * blocks / (tasks_per_thread(active.count) * threads);
    return std::clamp<std::int64_t>(std::min(even, kMostTaskBytes / first.tile_bytes) / 2 * 2, 2, blocks > 1 ? 8 : 32);
}

// A thread that waits will be late for the first task of the product that comes: what it asks memory for is another one. Of
// many rows weights are the least.
void Pass::reads_soon(Team& team, int thread, const PackedMatrix& w, std::int64_t per_task) const noexcept {
    if (!few_) return;
    const std::int64_t task = thread == 0 ? team.threads() - 1 : thread, tile = std::min(task * per_task, w.tiles - 1);
    team.reads_soon(w.data + tile * w.tile_bytes, std::min(kMostSoonBytes, std::min(per_task, w.tiles - tile) * w.tile_bytes));
}

// The residual connection, from `x` to the rows' own, which gemma norms once more. The product, at `place`, is everybody's and
// stays as it is.
void Pass::add_product(const Rows& rows, const float* x, std::int64_t place, std::int64_t row,
                       const float* post_norm) const noexcept {
    const std::int64_t hidden = shape_.hidden;
    const float* product = work_.product.as<float>() + place * hidden;
    if (post_norm != nullptr) {
        kernels_.rows->rms_norm(product, post_norm, hidden, shape_.rms_eps, rows.normed + place * hidden);
        product = rows.normed + place * hidden;
    }
    if (x != rows.x) std::copy_n(x + row * hidden, hidden, rows.x + row * hidden);
    kernels_.rows->add(rows.x + row * hidden, product, hidden);
}

// Biases, norms and rotation of the heads that share a kv head; its key and value go into the cache.
void Pass::finish_heads(const Layer& layer, const PagedAttention& job, std::int64_t row, std::int64_t kv_head) const noexcept {
    const std::int64_t dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
    const RotaryTable& rotary = layer.sliding ? work_.rotary_sliding : work_.rotary_everywhere;
    const float* cos = rotary.cos(step_.positions[row]);
    const float* sin = rotary.sin(step_.positions[row]);
    float* all = work_.heads.as<float>() + row * heads_width_;
    const auto bias = [&](float* heads, VectorPart part, std::int64_t first, std::int64_t count) noexcept {
        if (layer.vectors[part] != nullptr) kernels_.rows->add(heads, layer.vectors[part] + first * dim, count * dim);
    };
    const auto turn = [&](float* heads, VectorPart norm, std::int64_t count) noexcept {
        for (float* head = heads; head < heads + count * dim; head += dim) {
            if (layer.vectors[norm] != nullptr)
                kernels_.rows->rms_norm(head, layer.vectors[norm], dim, shape_.rms_eps, head);
            kernels_.rows->rotate(head, cos, sin, shape_.rope_dim / 2);
        }
    };
    float* query = all + kv_head * group * dim;
    float* key = all + queries_ + kv_head * dim;
    float* value = key + keys_;
    bias(query, kQueryBias, kv_head * group, group);
    bias(key, kKeyBias, kv_head, 1);
    bias(value, kValueBias, kv_head, 1);
    turn(query, kQueryNorm, group);
    turn(key, kKeyNorm, 1);
    kernels_.kv_put(&job, step_.slots[layer.group][row], kv_head, key, value);
}

void Pass::attend(Team& team, const Layer& layer, std::uint8_t* scratch) noexcept {
    AttentionPlan& plan = layer.sliding ? work_.plan_sliding : work_.plan_everywhere;
    const PagedAttention job = attention_of(layer);
    share(team, plan.tasks(), 1, [&](std::int64_t task, std::int64_t) noexcept {
        plan.run(kernels_.attention, job, task, scratch);
    });
    if (plan.merges() > 0)
        share(team, plan.merges(), 1, [&](std::int64_t merge, std::int64_t) noexcept { plan.merge(job, merge); });
}

// Gate, up and activation of a few columns at a time, prepared for the product that follows while they are in cache.
template <typename Ready>
void Pass::feed_forward(Team& team, const Layer& layer, PreparedRows rows, const Active& active,
                        std::uint8_t* scratch, const Ready& ready) noexcept {
    const PackedMatrix &gate = layer.matrices[kGate], &up = layer.matrices[kUp], &down = layer.matrices[kDown];
    const bool keeps_f32 = reads_f32(down);
    const auto activate = shape_.gelu ? kernels_.rows->gelu_tanh_mul : kernels_.rows->silu_mul;
    float* gates = reinterpret_cast<float*>(scratch);
    float* ups = gates + kGateValues;
    std::uint8_t* rest = scratch + kGateScratchBytes;
    ArrangedRows arranged{};
    rows.arranged = &arranged;
    const std::int64_t together = gate_tiles(active.count, prompt_block(gate), gate.tiles, team.threads());
    const std::int64_t width = together * kTileRows, columns = ceil_div(gate.tiles, together);
    share(team, blocks_of(active, gate) * columns, 1, [&](std::int64_t task, std::int64_t) noexcept {
        const RowBlock block = block_of(active, gate, task / columns);
        const std::int64_t tile = task % columns * together, tile_end = std::min(tile + together, gate.tiles);
        const std::int64_t column = tile * kTileRows, count = std::min(width, shape_.ff - column);
        // A kernel addresses its output by row and column of the whole; ours begins at this block's corner.
        const std::int64_t corner = block.begin * width + column;
        multiply_block(gate, rows, active, block, tile, tile_end, gates - corner, width, rest);
        multiply_block(up, rows, active, block, tile, tile_end, ups - corner, width, rest);
        for (std::int64_t row = block.begin; row < block.end; ++row) {
            float* gated = gates + (row - block.begin) * width;
            activate(gated, ups + (row - block.begin) * width, count);
            if (keeps_f32) std::copy_n(gated, count, work_.gated.as<float>() + row * shape_.ff + column);
            prepare_row(gated, count, column, shape_.ff, work_.wide, active, row, {&down});
        }
    }, ready);
}

void Pass::note(int thread, Phase phase) noexcept {
    if (thread != 0 || !decoder_.profiling_) return;
    const auto now = std::chrono::steady_clock::now();
    decoder_.phase_ns_[phase] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - noted_).count();
    noted_ = now;
}

void Decoder::forward(const KernelTable& kernels, const Step& step, KVCache& cache) {
    Pass pass(*this, kernels, step, cache);
    pass.prepare(thread_pool().threads());
    thread_pool().together(
        kPassScratchBytes,
        [](void* job, Team& team, int thread, std::uint8_t* scratch) noexcept {
            static_cast<Pass*>(job)->run(team, thread, scratch);
        },
        &pass);
    pass.finish();
}

}  // namespace taximeter
