// The decoder and its cache as Python sees them. Every index that a pass follows is checked here, before the GIL is released.
#include "decoder/decoder.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "bindings/arrays.h"
#include "bindings/levels.h"
#include "bindings/module.h"

namespace taximeter {
namespace {

KVFormat kv_format(const std::string& name) {
    if (name == "f32") return kKVF32;
    if (name == "bf16") return kKVBF16;
    if (name == "int8") return kKVInt8;
    refuse("no cache format " + name);
}

// Row r is token_ids[r] at positions[r] of sequence row_seq[r]. The rows of a sequence follow each other and ascend.
void check_rows(const Step& step, const DecoderShape& shape) {
    for (std::int64_t row = 0; row < step.rows; ++row) {
        if (step.token_ids[row] < 0 || step.token_ids[row] >= shape.vocab)
            refuse("token_ids names a token outside the vocabulary of " + std::to_string(shape.vocab));
        const std::int64_t seq = step.row_seq[row];
        if (seq < 0 || seq >= step.sequences)
            refuse("row_seq names a sequence outside the " + std::to_string(step.sequences) + " of block_tables");
        if (row > 0 && (seq < step.row_seq[row - 1] || (seq == step.row_seq[row - 1] &&
                                                        step.positions[row] <= step.positions[row - 1])))
            refuse("rows are not sorted by sequence and position");
    }
    for (std::int64_t i = 0; i < step.logit_rows; ++i)
        if (step.logit_row[i] < (i > 0 ? step.logit_row[i - 1] + 1 : 0) || step.logit_row[i] >= step.rows)
            refuse("logit_rows do not ascend, or lie outside the " + std::to_string(step.rows) + " rows");
}

// Slots and block tables of one group of layers, of which those entries are read that a row's window reaches.
void check_cache(const Step& step, std::size_t group, const KVCache& cache, std::int64_t window) {
    const std::int64_t block_tokens = cache.block_tokens(), blocks = cache.groups()[group].blocks;
    for (std::int64_t row = 0; row < step.rows; ++row) {
        const std::int64_t slot = step.slots[group][row], position = step.positions[row];
        if (slot < 0 || slot >= blocks * block_tokens)
            refuse("a slot lies outside the cache's " + std::to_string(blocks * block_tokens));
        if (position < 0 || position >= step.max_blocks * block_tokens)
            refuse("a position lies outside the " + std::to_string(step.max_blocks * block_tokens) + " of a block table");
    }
    for (std::int64_t begin = 0, end = 0; begin < step.rows; begin = end) {
        while (end < step.rows && step.row_seq[end] == step.row_seq[begin]) ++end;
        const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, step.positions[begin] - window + 1) : 0;
        const std::int32_t* table = step.block_tables[group] + step.row_seq[begin] * step.max_blocks;
        for (std::int64_t i = first / block_tokens; i <= step.positions[end - 1] / block_tokens; ++i)
            if (table[i] < 0 || table[i] >= blocks)
                refuse("block_tables names a block outside the cache's " + std::to_string(blocks));
    }
}

class BoundDecoder {
public:
    BoundDecoder(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t ff,
                 std::int64_t vocab, std::vector<bool> sliding, std::int64_t window, double rms_eps, double attention_scale,
                 double embedding_scale, double logit_softcap, bool bf16_units, bool gelu, std::vector<double> turns_everywhere,
                 std::vector<double> turns_sliding)
        : decoder_(DecoderShape{hidden, heads, kv_heads, head_dim, ff, vocab,
                                2 * static_cast<std::int64_t>(turns_everywhere.size()), window, static_cast<float>(rms_eps),
                                static_cast<float>(attention_scale), static_cast<float>(embedding_scale),
                                static_cast<float>(logit_softcap), bf16_units, gelu, std::move(sliding), std::move(turns_everywhere),
                                std::move(turns_sliding)}) {}

    void set_matrix(std::int64_t layer, const std::string& part, const std::string& format, const Input& rows, std::int64_t k) {
        const auto known = matrix_part(part);
        if (!known) refuse("a layer has no matrix " + part);
        set(format, rows, k, [&](PackedFormat packed, const std::uint8_t* data, std::int64_t n) {
            decoder_.set_matrix(layer, *known, packed, data, n, k);
        });
    }
    void set_embedding(const std::string& format, const Input& rows, std::int64_t k) {
        set(format, rows, k, [&](PackedFormat packed, const std::uint8_t* data, std::int64_t n) {
            decoder_.set_embedding(packed, data, n, k);
        });
    }
    void set_head(const std::string& format, const Input& rows, std::int64_t k) {
        set(format, rows, k, [&](PackedFormat packed, const std::uint8_t* data, std::int64_t n) {
            decoder_.set_head(packed, data, n, k);
        });
    }
    void set_vector(std::int64_t layer, const std::string& part, const Input& values) {
        const auto known = vector_part(part);
        if (!known) refuse("a layer has no vector " + part);
        const auto* data = checked<const float>("values", values, {kAny});
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        decoder_.set_vector(layer, *known, data, size(values, 0));
    }
    void set_output_norm(const Input& values) {
        const auto* data = checked<const float>("values", values, {kAny});
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        decoder_.set_output_norm(data, size(values, 0));
    }
    void finish() {
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        decoder_.finish();
    }

    void forward(const std::string& level, KVCache& cache, const Input& token_ids, const Input& positions, const Input& row_seq,
                 const std::vector<Input>& slots, const std::vector<Input>& block_tables, const Input& logit_rows,
                 const Output& out, std::int64_t generated_rows) {
        if (!decoder_.finished()) refuse("the decoder has not been finished");
        const DecoderShape& shape = decoder_.shape();
        if (cache.kv_heads() != shape.kv_heads || cache.head_dim() != shape.head_dim || cache.groups().size() != decoder_.groups())
            refuse("the cache was made for another model");
        if (slots.size() != decoder_.groups() || block_tables.size() != decoder_.groups())
            refuse("slots and block_tables come once for each group of layers");
        Step step{};
        step.token_ids = checked<const std::int64_t>("token_ids", token_ids, {kAny});
        step.rows = size(token_ids, 0);
        if (generated_rows < 0 || generated_rows > step.rows) refuse("generated_rows is not a number of rows");
        step.generated_rows = generated_rows;
        step.positions = checked<const std::int32_t>("positions", positions, {step.rows});
        step.row_seq = checked<const std::int32_t>("row_seq", row_seq, {step.rows});
        step.logit_row = checked<const std::int64_t>("logit_rows", logit_rows, {kAny});
        step.logit_rows = size(logit_rows, 0);
        if (out.dtype() == nb::dtype<std::int64_t>()) step.best = checked<std::int64_t>("out", out, {step.logit_rows});
        else step.logits = checked<float>("out", out, {step.logit_rows, shape.vocab});
        for (std::size_t group = 0; group < decoder_.groups(); ++group) {
            if (cache.groups()[group].layers != decoder_.group_layers()[group]) refuse("the cache was made for another model");
            step.slots[group] = checked<const std::int64_t>("slots", slots[group], {step.rows});
            step.block_tables[group] = checked<const std::int32_t>("block_tables", block_tables[group], {kAny, kAny});
            if (group > 0 && (size(block_tables[group], 0) != step.sequences || size(block_tables[group], 1) != step.max_blocks))
                refuse("block_tables differ in shape");
            step.sequences = size(block_tables[group], 0);
            step.max_blocks = size(block_tables[group], 1);
        }
        if (step.rows == 0) return;
        check_rows(step, shape);
        const bool all_slide = std::find(shape.sliding.begin(), shape.sliding.end(), false) == shape.sliding.end();
        for (std::size_t group = 0; group < decoder_.groups(); ++group)
            check_cache(step, group, cache, group == 1 || all_slide ? shape.window : 0);
        const KernelTable& kernels = kernel_table(level_named(level));
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        decoder_.forward(kernels, step, cache);
    }

    std::vector<std::int64_t> group_layers() const { return decoder_.group_layers(); }
    std::int64_t pass_bytes() const { return decoder_.pass_bytes(); }
    std::int64_t read_bytes() {
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        return decoder_.read_bytes();
    }
    void profile(bool on) {
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        decoder_.profile(on);
    }
    nb::dict phases() {
        const std::array<std::int64_t, kPhases> ns = phase_ns();
        nb::dict phases;
        for (std::size_t i = 0; i < kPhases; ++i) phases[phase_names()[i]] = ns[i];
        return phases;
    }

private:
    // Not in the middle of a pass, which writes them.
    std::array<std::int64_t, kPhases> phase_ns() {
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        return decoder_.phase_ns();
    }

    template <typename Set>
    void set(const std::string& format, const Input& rows, std::int64_t k, Set&& set) {
        const PackedFormat packed = packed_format_named(format);
        const std::int64_t n = rows.ndim() > 0 ? size(rows, 0) : 0;
        const PackedMatrix shape = packed_shape(packed, n, k);  // refuses a k that the format cannot have
        const auto* data = checked<const std::uint8_t>("rows", rows, {shape.n, file_row_bytes(packed, k)});
        const nb::gil_scoped_release released;
        const std::lock_guard turn(turn_);
        set(packed, data, n);
    }

    Decoder decoder_;
    std::mutex turn_;  // one caller at a time: the workspace is one, and so is the memory that weights go into
};

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<KVCache>(m, "KVCache")
        .def("__init__",
             [](KVCache* self, const std::string& format, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t block_tokens,
                const std::vector<std::int64_t>& layers, const std::vector<std::int64_t>& blocks) {
                 new (self) KVCache(kv_format(format), kv_heads, head_dim, block_tokens, layers, blocks);
             },
             nb::arg("format"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("block_tokens"), nb::arg("layers"),
             nb::arg("blocks"))
        .def("copy_block", &KVCache::copy_block, nb::arg("group"), nb::arg("source"), nb::arg("target"))
        .def("touch_block", &KVCache::touch_block, nb::arg("group"), nb::arg("block"), nb::call_guard<nb::gil_scoped_release>());

    nb::class_<BoundDecoder>(m, "Decoder")
        .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::vector<bool>,
                      std::int64_t, double, double, double, double, bool, bool, std::vector<double>, std::vector<double>>(),
             nb::kw_only(), nb::arg("hidden"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("ff"),
             nb::arg("vocab"), nb::arg("sliding"), nb::arg("window"), nb::arg("rms_eps"), nb::arg("attention_scale"),
             nb::arg("embedding_scale"), nb::arg("logit_softcap"), nb::arg("bf16_units"), nb::arg("gelu"), nb::arg("turns_everywhere"),
             nb::arg("turns_sliding"))
        .def("set_matrix", &BoundDecoder::set_matrix, nb::arg("layer"), nb::arg("part"), nb::arg("format"),
             nb::arg("rows").noconvert(), nb::arg("k"))
        .def("set_embedding", &BoundDecoder::set_embedding, nb::arg("format"), nb::arg("rows").noconvert(), nb::arg("k"))
        .def("set_head", &BoundDecoder::set_head, nb::arg("format"), nb::arg("rows").noconvert(), nb::arg("k"))
        .def("set_vector", &BoundDecoder::set_vector, nb::arg("layer"), nb::arg("part"), nb::arg("values").noconvert())
        .def("set_output_norm", &BoundDecoder::set_output_norm, nb::arg("values").noconvert())
        .def("finish", &BoundDecoder::finish)
        .def("forward", &BoundDecoder::forward, nb::arg("level"), nb::arg("cache"), nb::arg("token_ids").noconvert(),
             nb::arg("positions").noconvert(), nb::arg("row_seq").noconvert(), nb::arg("slots"), nb::arg("block_tables"),
             nb::arg("logit_rows").noconvert(), nb::arg("out").noconvert(), nb::arg("generated_rows"))
        .def("profile", &BoundDecoder::profile, nb::arg("on"))
        .def_prop_ro("phases", &BoundDecoder::phases)
        .def_prop_ro("group_layers", &BoundDecoder::group_layers)
        .def_prop_ro("pass_bytes", &BoundDecoder::pass_bytes)
        .def_prop_ro("read_bytes", &BoundDecoder::read_bytes);
}

}  // namespace taximeter
