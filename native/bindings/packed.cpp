// Packed matrices and their products, one kernel at a time: for tests, for benchmarks, and for quantizing weights at load.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "bindings/arrays.h"
#include "bindings/levels.h"
#include "bindings/module.h"
#include "dispatch.h"
#include "memory.h"
#include "packed/layout.h"
#include "packed/pack.h"
#include "threads.h"

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A job of the pool that is any function of a range: [begin, end) cut into tasks of `step`.
template <typename Work>
void in_ranges(int64_t count, int64_t step, size_t scratch_bytes, Work work) {
    struct Job {
        int64_t count, step;
        Work* work;
    } job{count, step, &work};
    thread_pool().run(
        ceil_div(count, step), scratch_bytes,
        [](void* context, int64_t task, std::uint8_t* scratch) noexcept {
            const Job& job = *static_cast<const Job*>(context);
            (*job.work)(task * job.step, std::min((task + 1) * job.step, job.count), scratch);
        },
        &job);
}

// A matrix with the memory its tiles lie in.
class BoundMatrix {
public:
    BoundMatrix(const std::string& format, const Input& rows, int64_t k) {
        const PackedFormat known = packed_format_named(format);
        shape_ = packed_shape(known, rows.ndim() > 0 ? size(rows, 0) : 0, k);
        const int64_t row_bytes = file_row_bytes(known, k);
        const auto* from = checked<const std::uint8_t>("rows", rows, {shape_.n, row_bytes});
        const nb::gil_scoped_release released;
        memory_ = Memory(static_cast<size_t>(packed_bytes(shape_)), Memory::Pages::huge);
        shape_.data = memory_.as<std::uint8_t>();
        in_ranges(shape_.tiles, 8, 0, [&](int64_t begin, int64_t end, std::uint8_t*) noexcept {
            pack_tiles(shape_, from, row_bytes, begin, end, memory_.as<std::uint8_t>());
        });
    }

    const PackedMatrix& shape() const noexcept { return shape_; }

    void unpack_rows(const Input& indices, const Output& out) const {
        const auto* wanted = checked<const int64_t>("indices", indices, {kAny});
        const int64_t count = size(indices, 0);
        float* to = checked<float>("out", out, {count, shape_.k});
        for (int64_t i = 0; i < count; ++i)
            if (wanted[i] < 0 || wanted[i] >= shape_.n)
                refuse("indices names a row outside the " + std::to_string(shape_.n) + " of the matrix");
        const nb::gil_scoped_release released;
        for (int64_t i = 0; i < count; ++i) unpack_row(shape_, wanted[i], to + i * shape_.k);
    }

private:
    PackedMatrix shape_{};
    Memory memory_;
};

// Activations in every form that a kernel may read.
struct Prepared {
    Prepared(const KernelTable& kernels, const float* x, int64_t rows, int64_t k, bool zeros) {
        const int64_t groups = ceil_div(k, kGroup);
        const auto room = [rows](int64_t count, size_t each) {
            return Memory(static_cast<size_t>(rows * count) * each, Memory::Pages::lazily);
        };
        q = room(groups * kGroup, sizeof(std::int8_t));
        d = room(groups, sizeof(float));
        z = room(groups, sizeof(std::int32_t));
        s = room(groups, sizeof(float));
        s_half = room(2 * groups, sizeof(float));
        bf16 = Memory(static_cast<size_t>(ceil_div(rows, kBf16TileRows) * groups * kBf16TileValues) * sizeof(std::uint16_t),
                      Memory::Pages::lazily);
        view = {rows, k, q.as<std::int8_t>(), d.as<float>(), zeros ? z.as<std::int32_t>() : nullptr, s.as<float>(), s_half.as<float>(), x, k,
                bf16.as<std::uint16_t>(), nullptr};
        in_ranges(rows, 8, 0, [&](int64_t begin, int64_t end, std::uint8_t*) noexcept {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t at = row * groups;
                kernels.quantize_row(x + row * k, k, q.as<std::int8_t>() + at * kGroup, d.as<float>() + at,
                                     zeros ? z.as<std::int32_t>() + at : nullptr, s.as<float>() + at, s_half.as<float>() + 2 * at);
                kernels.round_row(x + row * k, k, bf16.as<std::uint16_t>() + bf16_row_at(row, k));
            }
        });
    }

    Memory q, d, z, s, s_half, bf16;
    PreparedRows view{};
};

bool multiplies_bf16(const std::string& level, const std::string& format) {
    const Bf16Units units = kernel_table(level_named(level)).bf16_units;
    const PackedFormat known = packed_format_named(format);
    return (units != Bf16Units::none && known == kPackedBF16) ||
           (units == Bf16Units::bf16_and_quantized_weights && !is_float(known));
}

void matmul(const std::string& level, const BoundMatrix& matrix, const Input& x, const Output& out, bool bf16, bool zeros) {
    const KernelTable& kernels = kernel_table(level_named(level));
    const PackedMatrix& w = matrix.shape();
    if (bf16 && !multiplies_bf16(level, std::string(packed_format_name(w.format)))) refuse(level + " has no units for that");
    const auto* from = checked<const float>("x", x, {kAny, w.k});
    const int64_t rows = size(x, 0);
    float* y = checked<float>("out", out, {rows, w.n});
    if (rows == 0) return;
    const nb::gil_scoped_release released;
    const Prepared prepared(kernels, from, rows, w.k, zeros);
    const MatmulPackedKernel kernel = bf16 ? kernels.matmul_bf16 : kernels.matmul;
    in_ranges(w.tiles, 8, kMatmulPackedScratchBytes, [&](int64_t begin, int64_t end, std::uint8_t* scratch) noexcept {
        for (int64_t row = 0; row < rows; row += 64)
            kernel(&w, &prepared.view, row, std::min<int64_t>(row + 64, rows), begin, end, y, w.n, scratch);
    });
}

void quantize_activations(const std::string& level, const Input& x, const Output& q, const Output& d, const Output& z,
                          const Output& s, const Output& s_half, bool zeros) {
    const KernelTable& kernels = kernel_table(level_named(level));
    const auto* from = checked<const float>("x", x, {kAny, kAny});
    const int64_t rows = size(x, 0), k = size(x, 1), groups = ceil_div(k, kGroup);
    auto* codes = checked<std::int8_t>("q", q, {rows, groups * kGroup});
    auto* scales = checked<float>("d", d, {rows, groups});
    auto* starts = checked<std::int32_t>("z", z, {rows, groups});
    auto* sums = checked<float>("s", s, {rows, groups});
    auto* half_sums = checked<float>("s_half", s_half, {rows, 2 * groups});
    const nb::gil_scoped_release released;
    for (int64_t row = 0; row < rows; ++row)
        kernels.quantize_row(from + row * k, k, codes + row * groups * kGroup, scales + row * groups, zeros ? starts + row * groups : nullptr,
                             sums + row * groups, half_sums + row * 2 * groups);
}

void round_activations(const std::string& level, const Input& x, const Output& out) {
    const KernelTable& kernels = kernel_table(level_named(level));
    const auto* from = checked<const float>("x", x, {kAny, kAny});
    const int64_t rows = size(x, 0), k = size(x, 1), tile_rows = ceil_div(rows, kBf16TileRows);
    auto* to = checked<std::uint16_t>("out", out, {tile_rows, bf16_steps(k), int64_t{kBf16TileRows}, int64_t{kGroup}});
    const nb::gil_scoped_release released;
    for (int64_t row = 0; row < rows; ++row) kernels.round_row(from + row * k, k, to + bf16_row_at(row, k));
}

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;

Bytes quantize_rows(const std::string& format, const Input& weights) {
    const PackedFormat known = packed_format_named(format);
    const auto* from = checked<const float>("weights", weights, {kAny, kAny});
    const int64_t k = size(weights, 1);
    const int64_t rows = packed_shape(known, size(weights, 0), k).n, row_bytes = file_row_bytes(known, k);
    if (!quantizes_to(known)) refuse("weights are never quantized to " + format);
    auto bytes = std::make_unique<std::uint8_t[]>(static_cast<size_t>(rows * row_bytes));
    std::uint8_t* to = bytes.get();
    {
        const nb::gil_scoped_release released;
        in_ranges(rows, 64, 0, [&](int64_t begin, int64_t end, std::uint8_t*) noexcept {
            for (int64_t row = begin; row < end; ++row) quantize_file_row(known, from + row * k, k, to + row * row_bytes);
        });
    }
    const nb::capsule owner(bytes.release(), [](void* data) noexcept { delete[] static_cast<std::uint8_t*>(data); });
    return Bytes(to, {static_cast<size_t>(rows), static_cast<size_t>(row_bytes)}, owner);
}

}  // namespace

void bind_packed(nb::module_& m) {
    nb::class_<BoundMatrix>(m, "PackedMatrix")
        .def(nb::init<const std::string&, const Input&, int64_t>(), nb::arg("format"), nb::arg("rows").noconvert(),
             nb::arg("k"))
        .def_prop_ro("n", [](const BoundMatrix& matrix) { return matrix.shape().n; })
        .def_prop_ro("k", [](const BoundMatrix& matrix) { return matrix.shape().k; })
        .def_prop_ro("size_bytes", [](const BoundMatrix& matrix) { return packed_bytes(matrix.shape()); })
        .def("unpack_rows", &BoundMatrix::unpack_rows, nb::arg("indices").noconvert(), nb::arg("out").noconvert());
    m.def("matmul_packed", &matmul, nb::arg("level"), nb::arg("w"), nb::arg("x").noconvert(), nb::arg("out").noconvert(),
          nb::arg("bf16"), nb::arg("zeros"));
    m.def("quantize_activations", &quantize_activations, nb::arg("level"), nb::arg("x").noconvert(),
          nb::arg("q").noconvert(), nb::arg("d").noconvert(), nb::arg("z").noconvert(), nb::arg("s").noconvert(), nb::arg("s_half").noconvert(),
          nb::arg("zeros"));
    m.def("round_activations", &round_activations, nb::arg("level"), nb::arg("x").noconvert(), nb::arg("out").noconvert());
    m.def("multiplies_bf16", &multiplies_bf16, nb::arg("level"), nb::arg("format"));
    m.def("quantize_rows", &quantize_rows, nb::arg("format"), nb::arg("weights").noconvert());
}

}  // namespace taximeter
