#include "decoder/decoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "threads.h"

namespace taximeter {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 20, kAlignment = 64;

constexpr std::string_view kMatrixNames[] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
constexpr std::string_view kVectorNames[] = {"attn_norm.weight",   "ffn_norm.weight",    "post_attention_norm.weight",
                                             "post_ffw_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight",
                                             "attn_q.bias",        "attn_k.bias",        "attn_v.bias"};
static_assert(std::size(kMatrixNames) == kMatrixParts && std::size(kVectorNames) == kVectorParts);

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

// One such weight, and every answer is nonsense.
[[noreturn]] void refuse_not_finite(const std::string& what) { refuse(what + " holds numbers that are infinite or none at all"); }

std::string in_layer(std::int64_t layer, std::string_view part) {
    return std::string(part) + " of layer " + std::to_string(layer);
}

struct Packing {
    const PackedMatrix* matrix;
    const std::uint8_t* rows;
    std::int64_t row_bytes;
    std::uint8_t* to;
    std::atomic<bool> is_finite{true};
};

constexpr std::int64_t kTilesPerTask = 8;

void pack_some(void* job, std::int64_t task, std::uint8_t*) noexcept {
    Packing& packing = *static_cast<Packing*>(job);
    const std::int64_t begin = task * kTilesPerTask, end = std::min(begin + kTilesPerTask, packing.matrix->tiles);
    pack_tiles(*packing.matrix, packing.rows, packing.row_bytes, begin, end, packing.to);
    // Looked at while they are in cache.
    if (!are_finite(*packing.matrix, packing.to, begin, end)) packing.is_finite.store(false, std::memory_order_relaxed);
}

// n and k that each part must have.
std::pair<std::int64_t, std::int64_t> size_of(const DecoderShape& shape, MatrixPart part) {
    const std::int64_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
    switch (part) {
        case kQuery: return {queries, shape.hidden};
        case kKey:
        case kValue: return {keys, shape.hidden};
        case kAttentionOut: return {shape.hidden, queries};
        case kGate:
        case kUp: return {shape.ff, shape.hidden};
        default: return {shape.hidden, shape.ff};
    }
}

std::int64_t size_of(const DecoderShape& shape, VectorPart part) {
    switch (part) {
        case kQueryNorm:
        case kKeyNorm: return shape.head_dim;
        case kQueryBias: return shape.heads * shape.head_dim;
        case kKeyBias:
        case kValueBias: return shape.kv_heads * shape.head_dim;
        default: return shape.hidden;
    }
}

template <typename Part, std::size_t N>
std::optional<Part> part_named(const std::string_view (&names)[N], std::string_view name) {
    const auto found = std::find(std::begin(names), std::end(names), name);
    if (found == std::end(names)) return std::nullopt;
    return static_cast<Part>(found - std::begin(names));
}

}  // namespace

std::optional<MatrixPart> matrix_part(std::string_view name) { return part_named<MatrixPart>(kMatrixNames, name); }
std::optional<VectorPart> vector_part(std::string_view name) { return part_named<VectorPart>(kVectorNames, name); }

Decoder::Decoder(DecoderShape shape) : shape_(std::move(shape)) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    for (const std::int64_t size : {shape_.hidden, shape_.heads, shape_.kv_heads, shape_.head_dim, shape_.ff, shape_.vocab})
        if (size < 1 || size >= most) refuse("a size of " + std::to_string(size) + ", which no model can have");
    if (shape_.heads % shape_.kv_heads != 0) refuse("query heads cannot share the kv heads evenly");
    if (shape_.head_dim % 2 != 0 || shape_.rope_dim % 2 != 0 || shape_.rope_dim < 0 || shape_.rope_dim > shape_.head_dim)
        refuse("heads of " + std::to_string(shape_.head_dim) + " values, of which " + std::to_string(shape_.rope_dim) + " turn");
    if (shape_.head_dim > kAttentionMaxDim)
        refuse("heads of " + std::to_string(shape_.head_dim) + " values; at most " + std::to_string(kAttentionMaxDim) + " can be attended with");
    const auto half = static_cast<std::size_t>(shape_.rope_dim / 2);
    if (shape_.turns_everywhere.size() != half || shape_.turns_sliding.size() != half) refuse("one angle for each pair that turns");
    if (shape_.sliding.empty()) refuse("a model without layers");
    layers_.resize(shape_.sliding.size());

    std::array<std::int64_t, 2> counts{};  // layers that see everything, layers that slide
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layers_[i].sliding = shape_.sliding[i];
        layers_[i].group_layer = counts[shape_.sliding[i]]++;
    }
    if (counts[1] > 0 && shape_.window < 1) refuse("a window of " + std::to_string(shape_.window) + " keys sees nothing");
    for (const std::int64_t count : counts)
        if (count > 0) group_layers_.push_back(count);
    for (Layer& layer : layers_) layer.group = layer.sliding && counts[0] > 0 ? 1 : 0;
}

std::uint8_t* Decoder::room_for(std::size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (chunks_.empty() || chunk_used_ + bytes > chunks_.back().bytes()) {
        chunks_.emplace_back(std::max(bytes, kChunkBytes), Memory::Pages::huge);
        chunk_used_ = 0;
    }
    std::uint8_t* room = chunks_.back().as() + chunk_used_;
    chunk_used_ += bytes;
    return room;
}

const float* Decoder::keep(const float* values, std::int64_t size, const std::string& what) {
    if (finished_) refuse("the decoder has been finished");
    if (!std::all_of(values, values + size, [](float value) { return std::isfinite(value); })) refuse_not_finite(what);
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(float);
    std::uint8_t* room = room_for(bytes);
    std::memcpy(room, values, bytes);
    return reinterpret_cast<const float*>(room);
}

PackedMatrix Decoder::pack(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k,
                           const std::string& what) {
    if (finished_) refuse("the decoder has been finished");
    PackedMatrix matrix = packed_shape(format, n, k);
    std::uint8_t* room = room_for(static_cast<std::size_t>(packed_bytes(matrix)));
    Packing packing{&matrix, rows, file_row_bytes(format, k), room};
    thread_pool().run((matrix.tiles + kTilesPerTask - 1) / kTilesPerTask, 0, pack_some, &packing);
    if (!packing.is_finite.load(std::memory_order_relaxed)) refuse_not_finite(what);
    matrix.data = room;
    return matrix;
}

void Decoder::set_matrix(std::int64_t layer, MatrixPart part, PackedFormat format, const std::uint8_t* rows, std::int64_t n,
                         std::int64_t k) {
    if (layer < 0 || layer >= layers()) refuse("no layer " + std::to_string(layer));
    const auto [want_n, want_k] = size_of(shape_, part);
    if (n != want_n || k != want_k) refuse(in_layer(layer, kMatrixNames[part]) + " has the wrong shape");
    layers_[static_cast<std::size_t>(layer)].matrices[part] = pack(format, rows, n, k, in_layer(layer, kMatrixNames[part]));
}

void Decoder::set_embedding(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k) {
    if (n != shape_.vocab || k != shape_.hidden) refuse("the embedding has the wrong shape");
    embedding_ = pack(format, rows, n, k, "the embedding");
}

void Decoder::set_head(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k) {
    if (n != shape_.vocab || k != shape_.hidden) refuse("the head has the wrong shape");
    head_ = pack(format, rows, n, k, "the head");
}

void Decoder::set_vector(std::int64_t layer, VectorPart part, const float* values, std::int64_t size) {
    if (layer < 0 || layer >= layers()) refuse("no layer " + std::to_string(layer));
    if (size != size_of(shape_, part)) refuse(in_layer(layer, kVectorNames[part]) + " has the wrong size");
    layers_[static_cast<std::size_t>(layer)].vectors[part] = keep(values, size, in_layer(layer, kVectorNames[part]));
}

void Decoder::set_output_norm(const float* values, std::int64_t size) {
    if (size != shape_.hidden) refuse("the last norm has the wrong size");
    output_norm_ = keep(values, size, "the last norm");
}

void Decoder::finish() {
    if (embedding_.data == nullptr) refuse("the embedding is missing");
    if (output_norm_ == nullptr) refuse("the last norm is missing");
    if (head_.data == nullptr) head_ = embedding_;
    pass_bytes_ = packed_bytes(head_);
    for (std::int64_t i = 0; i < layers(); ++i) {
        const Layer& layer = layers_[static_cast<std::size_t>(i)];
        for (std::size_t part = 0; part < kMatrixParts; ++part) {
            if (layer.matrices[part].data == nullptr) refuse(in_layer(i, kMatrixNames[part]) + " is missing");
            pass_bytes_ += packed_bytes(layer.matrices[part]);
        }
        for (const VectorPart part : {kAttentionNorm, kFeedForwardNorm})
            if (layer.vectors[part] == nullptr) refuse(in_layer(i, kVectorNames[part]) + " is missing");
    }
    finished_ = true;
}

void Decoder::profile(bool on) noexcept {
    profiling_ = on;
    phase_ns_.fill(0);
}

}  // namespace taximeter
