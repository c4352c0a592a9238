// The only file that knows Python. Checks everything a kernel relies on, then releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "dispatch.h"
#include "processors.h"
#include "threads.h"

namespace nb = nanobind;
using namespace taximeter;

namespace {

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;

constexpr std::int64_t kAny = -1;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// The data of an array that is C-contiguous, on the CPU, of T and of `shape` (kAny: any size on that axis).
template <typename T, typename Array>
T* checked(const char* name, const Array& array, std::initializer_list<std::int64_t> shape) {
    const std::string subject(name);
    if (array.device_type() != nb::device::cpu::value) refuse(subject + " is not in main memory");
    if (array.dtype() != nb::dtype<std::remove_const_t<T>>()) refuse(subject + " has the wrong dtype");
    if (array.ndim() != shape.size()) refuse(subject + " has " + std::to_string(array.ndim()) + " dimensions, not " +
                                             std::to_string(shape.size()));
    std::size_t axis = 0;
    for (const std::int64_t size : shape) {
        const auto have = static_cast<std::int64_t>(array.shape(axis));
        if (size != kAny && have != size) {
            refuse(subject + " has size " + std::to_string(have) + " on axis " + std::to_string(axis) + ", not " +
                   std::to_string(size));
        }
        ++axis;
    }
    if (array.size() == 0) return static_cast<T*>(array.data());  // its strides mean nothing
    std::int64_t stride = 1;
    for (axis = array.ndim(); axis-- > 0;) {
        if (array.shape(axis) > 1 && array.stride(axis) != stride) refuse(subject + " is not C-contiguous");
        stride *= static_cast<std::int64_t>(array.shape(axis));
    }
    return static_cast<T*>(array.data());
}

std::int64_t size(const Input& array, std::size_t axis) { return static_cast<std::int64_t>(array.shape(axis)); }

constexpr struct {
    const char* name;
    CpuLevel level;
} kLevels[] = {{"portable", CpuLevel::portable}, {"avx2", CpuLevel::avx2}, {"avx512", CpuLevel::avx512}};

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const auto& [name, level] : kLevels)
        if (level <= cpu_level()) names.emplace_back(name);
    return names;
}

const KernelTable& table_of(const std::string& wanted) {
    for (const auto& [name, level] : kLevels)
        if (wanted == name && level <= cpu_level()) return kernel_table(level);
    refuse("this processor has no level " + wanted);
}

// Every index that the kernel will follow.
void check_indices(const PagedAttentionF32& job, std::int64_t blocks, std::int64_t seqs) {
    for (std::int64_t row = 0; row < job.rows; ++row) {
        const std::int64_t seq = job.row_seq[row], position = job.row_pos[row];
        if (seq < 0 || seq >= seqs)
            refuse("row_seq names a sequence outside the " + std::to_string(seqs) + " of block_tables");
        if (position < 0 || position >= job.max_blocks * job.block_size)
            refuse("row_pos lies outside the " + std::to_string(job.max_blocks * job.block_size) +
                   " positions of a block table");
    }
    for (std::int64_t begin = 0; begin < job.rows;) {
        std::int64_t end = begin, last = 0;
        for (; end < job.rows && job.row_seq[end] == job.row_seq[begin]; ++end)
            last = std::max<std::int64_t>(last, job.row_pos[end]);
        const std::int32_t* table = job.block_tables + job.row_seq[begin] * job.max_blocks;
        for (std::int64_t i = 0; i <= last / job.block_size; ++i)
            if (table[i] < 0 || table[i] >= blocks)
                refuse("block_tables names a block outside the cache's " + std::to_string(blocks));
        begin = end;
    }
}

// The kernels of one level.
class Kernels {
public:
    explicit Kernels(const std::string& level) : table_(table_of(level)) {}

    void matmul(const Input& x, const Input& w, const Output& out) const {
        MatmulF32 job{};
        job.x = checked<const float>("x", x, {kAny, kAny});
        job.rows = size(x, 0);
        job.k = size(x, 1);
        job.w = checked<const float>("w", w, {kAny, job.k});
        job.n = size(w, 0);
        job.y = checked<float>("out", out, {job.rows, job.n});
        const nb::gil_scoped_release released;
        matmul_f32(table_.matmul_f32, job);
    }

    void paged_attention(const Input& q, const Input& k_cache, const Input& v_cache, const Input& block_tables,
                         const Input& row_seq, const Input& row_pos, double scale, std::optional<std::int64_t> window,
                         const Output& out) const {
        PagedAttentionF32 job{};
        job.q = checked<const float>("q", q, {kAny, kAny, kAny});
        job.rows = size(q, 0);
        job.heads = size(q, 1);
        job.head_dim = size(q, 2);
        job.k_cache = checked<const float>("k_cache", k_cache, {kAny, kAny, kAny, job.head_dim});
        const std::int64_t blocks = size(k_cache, 0);
        job.kv_heads = size(k_cache, 1);
        job.block_size = size(k_cache, 2);
        job.v_cache = checked<const float>("v_cache", v_cache, {blocks, job.kv_heads, job.block_size, job.head_dim});
        job.block_tables = checked<const std::int32_t>("block_tables", block_tables, {kAny, kAny});
        const std::int64_t seqs = size(block_tables, 0);
        job.max_blocks = size(block_tables, 1);
        job.row_seq = checked<const std::int32_t>("row_seq", row_seq, {job.rows});
        job.row_pos = checked<const std::int32_t>("row_pos", row_pos, {job.rows});
        job.out = checked<float>("out", out, {job.rows, job.heads, job.head_dim});
        job.scale = static_cast<float>(scale);
        if (job.kv_heads == 0 || job.heads % job.kv_heads != 0)
            refuse(std::to_string(job.heads) + " query heads cannot share " + std::to_string(job.kv_heads) +
                   " kv heads evenly");
        if (window && *window < 1) refuse("a window of " + std::to_string(*window) + " keys sees nothing");
        job.window = window.value_or(0);
        check_indices(job, blocks, seqs);
        if (job.rows == 0 || job.heads == 0 || job.head_dim == 0) return;
        const nb::gil_scoped_release released;
        paged_attention_f32(table_.paged_attention_f32, job);
    }

private:
    const KernelTable& table_;
};

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Taximeter's native kernels; taximeter.engine.kernels is their only user.";
    m.def("levels", &levels, "Levels that this processor and its operating system run, slow to fast.");
    m.def("usable_processors", &usable_processors, nb::arg("root"));
    m.def("threads", [] { return thread_pool().threads(); });
    m.def("set_threads", [](int count) {
        if (count < 1) refuse("kernels need at least one thread");
        const nb::gil_scoped_release released;
        thread_pool().resize(count);
    });

    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string&>(), nb::arg("level"))
        .def("matmul_f32", &Kernels::matmul, nb::arg("x").noconvert(), nb::arg("w").noconvert(),
             nb::arg("out").noconvert())
        .def("paged_attention_f32", &Kernels::paged_attention, nb::arg("q").noconvert(),
             nb::arg("k_cache").noconvert(), nb::arg("v_cache").noconvert(), nb::arg("block_tables").noconvert(),
             nb::arg("row_seq").noconvert(), nb::arg("row_pos").noconvert(), nb::arg("scale"),
             nb::arg("window").none(), nb::arg("out").noconvert());
}
