// A decoder-only transformer: what it is made of, and one step of it. Every architecture the engine runs is this one, with
// or without each optional part.
//
// Knows the shapes and the order of operations; the arithmetic is in kernels/. Python says which rows a step has and reads
// logits; it never sees a layer.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decoder/kv_cache.h"
#include "decoder/screen.h"
#include "decoder/workspace.h"
#include "dispatch.h"
#include "memory.h"
#include "packed/pack.h"

namespace taximeter {

struct DecoderShape {
    std::int64_t hidden, heads, kv_heads, head_dim, ff, vocab, rope_dim, window;  // window: of the sliding layers
    float rms_eps, attention_scale, embedding_scale, logit_softcap;  // softcap 0: none
    bool bf16_units;           // round activations for bf16 weights where a level has units for the pair of them
    bool gelu;                 // the gate's activation: GELU in its tanh form, or SiLU
    std::vector<bool> sliding;  // one for each layer
    std::vector<double> turns_everywhere, turns_sliding;  // angle per position of each rotated pair, rope_dim / 2 of them
};

// The parts of a layer, by the names that GGUF gives them.
enum MatrixPart { kQuery, kKey, kValue, kAttentionOut, kGate, kUp, kDown, kMatrixParts };
enum VectorPart {
    kAttentionNorm, kFeedForwardNorm, kPostAttentionNorm, kPostFeedForwardNorm, kQueryNorm, kKeyNorm, kQueryBias, kKeyBias,
    kValueBias, kVectorParts
};
std::optional<MatrixPart> matrix_part(std::string_view name);  // "attn_q" …
std::optional<VectorPart> vector_part(std::string_view name);  // "attn_norm.weight", "attn_q.bias" …

// One step's rows, as in src/taximeter/engine/models. The first `generated_rows` are tokens that a model wrote, the others
// tokens of a prompt. Slots and block tables: one of each for every group of layers.
struct Step {
    std::int64_t rows, generated_rows, sequences, max_blocks, logit_rows;
    const std::int64_t* token_ids;
    const std::int32_t* positions;
    const std::int32_t* row_seq;
    const std::int64_t* logit_row;
    std::array<const std::int64_t*, 2> slots;
    std::array<const std::int32_t*, 2> block_tables;
    // What is wanted of each of the logit rows: its logits (vocab), or the token with the greatest one, -1 where that is no
    // finite number. The other is null.
    float* logits;
    std::int64_t* best;
};

class Decoder {
public:
    explicit Decoder(DecoderShape shape);
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    // Takes a copy, packed, on all threads. `rows` is in the file's layout of `format`; n × k is checked against the shape,
    // and that every weight is a finite number. Throws std::invalid_argument, also once it is finished.
    void set_matrix(std::int64_t layer, MatrixPart part, PackedFormat format, const std::uint8_t* rows, std::int64_t n,
                    std::int64_t k);
    void set_embedding(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k);
    void set_head(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k);  // else: the embedding
    void set_vector(std::int64_t layer, VectorPart part, const float* values, std::int64_t size);
    void set_output_norm(const float* values, std::int64_t size);

    // Throws std::invalid_argument naming what is missing. Call it once, when everything has been set.
    void finish();

    // Computes a step whose indices were checked; logits: logit_rows × vocab.
    void forward(const KernelTable& kernels, const Step& step, KVCache& cache);

    const DecoderShape& shape() const noexcept { return shape_; }
    std::int64_t layers() const noexcept { return static_cast<std::int64_t>(layers_.size()); }
    std::size_t groups() const noexcept { return group_layers_.size(); }
    const std::vector<std::int64_t>& group_layers() const noexcept { return group_layers_; }
    bool finished() const noexcept { return finished_; }

    // What one pass reads: every matrix once, and of the embedding what the head reads.
    std::int64_t pass_bytes() const noexcept { return pass_bytes_; }
    // What the last pass read of them: less where no logits were asked for, or a copy of the head was enough (screen.h).
    std::int64_t read_bytes() const noexcept { return read_bytes_; }

    // Nanoseconds spent in each kind of work since `profile(true)`, in the order of phase_names().
    void profile(bool on) noexcept;
    const std::array<std::int64_t, kPhases>& phase_ns() const noexcept { return phase_ns_; }

private:
    friend class Pass;

    struct Layer {
        std::array<PackedMatrix, kMatrixParts> matrices{};
        std::array<const float*, kVectorParts> vectors{};
        std::size_t group = 0;         // of the KV cache
        std::int64_t group_layer = 0;  // which one there
        bool sliding = false;
    };

    // `what` is called that where it holds a number that is not finite.
    PackedMatrix pack(PackedFormat format, const std::uint8_t* rows, std::int64_t n, std::int64_t k, const std::string& what);
    std::uint8_t* room_for(std::size_t bytes);
    const float* keep(const float* values, std::int64_t size, const std::string& what);

    DecoderShape shape_;
    std::vector<Layer> layers_;
    std::vector<std::int64_t> group_layers_;
    PackedMatrix embedding_{}, head_{};
    const float* output_norm_ = nullptr;
    bool finished_ = false;
    std::int64_t pass_bytes_ = 0, read_bytes_ = 0;
    Screen screen_;

    std::deque<Memory> chunks_;  // where packed weights lie
    std::size_t chunk_used_ = 0;

    Workspace workspace_;
    bool profiling_ = false;
    std::array<std::int64_t, kPhases> phase_ns_{};
};

}  // namespace taximeter
