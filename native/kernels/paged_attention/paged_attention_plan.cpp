#include "paged_attention_plan.h"

#include <algorithm>

#include "state.h"

namespace taximeter {
namespace {

struct Keys {
    std::int64_t first, last;  // that any row of a tile sees
    std::int64_t products;     // keys × rows
};

Keys keys_of(const PagedAttention& job, std::int64_t row_begin, std::int64_t row_end) {
    Keys keys{INT64_MAX, 0, 0};
    for (std::int64_t row = row_begin; row < row_end; ++row) {
        const std::int64_t position = job.row_pos[row], first = attention_first_seen(&job, position);
        keys.first = std::min(keys.first, first);
        keys.last = std::max(keys.last, position);
        keys.products += position + 1 - first;
    }
    return keys;
}

// Reading a key and value takes about as long as multiplying them with this many lines.
constexpr std::int64_t kLinesPerRead = 8;

std::int64_t cost_of(const Keys& keys, std::int64_t group) {
    return (keys.last + 1 - keys.first) * kLinesPerRead + keys.products * group;
}

}  // namespace

void AttentionPlan::cut(const PagedAttention& job, int threads) {
    tasks_.clear();
    merges_.clear();
    tiles_.clear();
    const std::int64_t group = job.heads / job.kv_heads, at_least = std::int64_t{threads} * 4;
    // A short prompt is cut finer than the kernel could take it, so that every thread gets some. Behind many keys less so: these
    // can be shared out instead, and are then read once for more of the rows.
    const auto rows_behind = [&](const Keys& keys) {
        const std::int64_t spans = keys.last / kAttentionSpan + 1 - keys.first / kAttentionSpan;
        const std::int64_t lines = job.rows * job.heads * spans / at_least / 16 * 16;
        return std::max<std::int64_t>(1, std::clamp<std::int64_t>(lines, 32, kAttentionLines) / group);
    };

    std::int64_t total = 0;
    for (std::int64_t row = 0; row < job.rows;) {
        const std::int64_t rows = rows_behind(keys_of(job, row, row + 1));
        std::int64_t end = row + 1;
        while (end < job.rows && end - row < rows && job.row_seq[end] == job.row_seq[row]) ++end;
        tiles_.push_back(row);
        total += cost_of(keys_of(job, row, end), group) * job.kv_heads;
        row = end;
    }
    tiles_.push_back(job.rows);

    // A row with fewer kv heads than there are threads: these share the query heads, and read keys and values once each.
    const std::int64_t whole = (static_cast<std::int64_t>(tiles_.size()) - 1) * job.kv_heads;
    const std::int64_t parts = whole == 0 ? 1 : std::clamp<std::int64_t>(threads / whole, 1, group);

    std::int64_t floats = 0;
    const std::int64_t limit = total / at_least * 2;
    for (std::size_t tile = 0; tile + 1 < tiles_.size(); ++tile)
        for (std::int64_t head = 0; head < job.kv_heads; ++head)
            floats = cut_tile(job, tiles_[tile], tiles_[tile + 1], head, limit, parts, floats);
    if (partials_.size() < static_cast<std::size_t>(floats)) partials_.resize(static_cast<std::size_t>(floats));

    std::sort(tasks_.begin(), tasks_.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

// One tile and kv head: in several runs of spans where it is longer than `limit`; else whole, or in `parts` of the query heads.
// Returns the end of its states.
std::int64_t AttentionPlan::cut_tile(const PagedAttention& job, std::int64_t row_begin, std::int64_t row_end,
                                     std::int64_t kv_head, std::int64_t limit, std::int64_t parts, std::int64_t partial) {
    const std::int64_t group = job.heads / job.kv_heads;
    const Keys keys = keys_of(job, row_begin, row_end);
    const std::int64_t first = keys.first / kAttentionSpan, spans = keys.last / kAttentionSpan + 1 - first;
    const std::int64_t cost = cost_of(keys, group);
    const std::int64_t pieces = cost <= limit ? 1 : std::min(spans, 2 * cost / std::max<std::int64_t>(limit, 1));
    if (pieces == 1) {
        for (std::int64_t part = 0; part < parts; ++part)
            tasks_.push_back({row_begin, row_end, kv_head, first, first + spans, group * part / parts, group * (part + 1) / parts, -1,
                              cost / parts});
        return partial;
    }
    const std::int64_t span_floats = (row_end - row_begin) * group * attention_state_floats(&job);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const std::int64_t begin = spans * piece / pieces, end = spans * (piece + 1) / pieces;
        tasks_.push_back({row_begin, row_end, kv_head, first + begin, first + end, 0, group, partial + begin * span_floats,
                          cost * (end - begin) / spans});
    }
    merges_.push_back({row_begin, row_end, kv_head, spans, partial});
    return partial + spans * span_floats;
}

void AttentionPlan::run(AttentionSpanKernel kernel, const PagedAttention& job, std::int64_t task, void* scratch) noexcept {
    const Task& t = tasks_[static_cast<std::size_t>(task)];
    float* partial = t.partial < 0 ? nullptr : partials_.data() + t.partial;
    // Some query heads of a kv head are all of them in a job that has no others.
    PagedAttention some = job;
    const std::int64_t group = job.heads / job.kv_heads, count = t.group_end - t.group_begin;
    const std::int64_t head = t.kv_head * group + t.group_begin;
    some.heads = job.kv_heads * count;
    some.q += (head - t.kv_head * count) * job.head_dim;
    some.out += (head - t.kv_head * count) * job.head_dim;
    kernel(&some, t.row_begin, t.row_end, t.kv_head, t.span_begin, t.span_end, partial, scratch);
}

void AttentionPlan::merge(const PagedAttention& job, std::int64_t i) const noexcept {
    const Merge& m = merges_[static_cast<std::size_t>(i)];
    const std::int64_t group = job.heads / job.kv_heads, dim = job.head_dim, stride = attention_state_floats(&job);
    const std::int64_t lines = (m.row_end - m.row_begin) * group;
    for (std::int64_t line = 0; line < lines; ++line) {
        float mixed[kAttentionMaxDim];
        AttentionState state{0.0f, 0.0f, mixed};
        for (std::int64_t span = 0; span < m.spans; ++span) {
            const float* next = partials_.data() + m.partial + (span * lines + line) * stride;
            attention_merge(&state, next, next[dim], next[dim + 1], dim);
        }
        const std::int64_t row = m.row_begin + line / group, head = m.kv_head * group + line % group;
        attention_finish(mixed, state.total, job.out + row * job.out_stride + head * dim, dim);
    }
}

}  // namespace taximeter
