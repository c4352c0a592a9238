// A vocabulary's texts, and text merged into ids.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "tokenizer/merges_by_score.h"
#include "tokenizer/texts.h"

namespace taximeter {
namespace {

using std::int32_t;
using std::int64_t;
using std::size_t;

// What is shorter is merged before anybody who waits for the interpreter could have taken it.
constexpr size_t kLongBytes = 4096;

template <typename T>
std::span<const T> flat(const char* name, const Input& array) {
    const T* data = checked<const T>(name, array, {kAny});
    return {data, static_cast<size_t>(size(array, 0))};
}

nb::object string_starts_of(const Input& bytes, std::uint64_t at, std::uint64_t count, std::uint64_t longest) {
    const auto from = flat<std::uint8_t>("bytes", bytes);
    auto starts = std::make_unique<std::vector<int64_t>>();
    {
        const nb::gil_scoped_release released;
        *starts = string_starts(from, at, count, longest);
    }
    if (starts->empty()) return nb::none();
    int64_t* data = starts->data();
    const size_t shape[] = {starts->size()};
    const nb::capsule owner(starts.release(), [](void* made) noexcept { delete static_cast<std::vector<int64_t>*>(made); });
    return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(data, 1, shape, owner));
}

std::string_view utf8_of(const nb::str& text) {
    Py_ssize_t bytes = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes);
    if (utf8 == nullptr) throw nb::python_error();
    return {utf8, static_cast<size_t>(bytes)};
}

size_t checked_index(const Texts& texts, int64_t at) {
    if (at < 0 || static_cast<size_t>(at) >= texts.size()) throw nb::index_error("no such token");
    return static_cast<size_t>(at);
}

// The ids of all tokens that are called one of some names.
std::vector<int64_t> ids_of(const Texts& texts, const std::vector<nb::str>& names) {
    std::vector<std::string_view> wanted;
    for (const nb::str& name : names) wanted.push_back(utf8_of(name));
    std::sort(wanted.begin(), wanted.end());
    std::vector<int64_t> ids;
    for (size_t at = 0; at < texts.size(); ++at)
        if (std::binary_search(wanted.begin(), wanted.end(), texts[at])) ids.push_back(static_cast<int64_t>(at));
    return ids;
}

template <typename Merges>
std::vector<int32_t> merge(const Merges& merges, const nb::str& text) {
    const std::string_view utf8 = utf8_of(text);
    if (utf8.size() < kLongBytes) return merges.merge(utf8);
    const nb::gil_scoped_release released;
    return merges.merge(utf8);
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
    m.def("string_starts", &string_starts_of, nb::arg("bytes").noconvert(), nb::arg("at"), nb::arg("count"), nb::arg("longest"));
    nb::class_<Texts>(m, "Texts")
        .def("__init__",
             [](Texts* made, const Input& bytes, const Input& starts) {
                 new (made) Texts(flat<std::uint8_t>("bytes", bytes), flat<int64_t>("starts", starts));
             },
             nb::arg("bytes").noconvert(), nb::arg("starts").noconvert())
        .def("__len__", &Texts::size)
        .def("utf8",
             [](const Texts& texts, int64_t at) {
                 const std::string_view text = texts[checked_index(texts, at)];
                 return nb::bytes(text.data(), text.size());
             },
             nb::arg("at"))
        .def("ids_of", &ids_of, nb::arg("names"))
        .def_prop_ro("longest_characters", &Texts::longest_characters);
    nb::class_<MergesByScore>(m, "MergesByScore")
        .def("__init__",
             [](MergesByScore* made, std::shared_ptr<const Texts> texts, const Input& mergeable, const Input& scores,
                const Input& of_bytes, int32_t unknown) {
                 const auto highest = static_cast<int64_t>(texts->size());
                 const auto bytes = flat<int32_t>("of_bytes", of_bytes);
                 for (const int32_t id : bytes)
                     if (id < kNone || id >= highest) refuse("of_bytes names a token that is not there");
                 if (unknown < kNone || unknown >= highest) refuse("unknown is a token that is not there");
                 new (made) MergesByScore(std::move(texts), flat<bool>("mergeable", mergeable), flat<float>("scores", scores),
                                          bytes, unknown);
             },
             nb::arg("texts"), nb::arg("mergeable").noconvert(), nb::arg("scores").noconvert(), nb::arg("of_bytes").noconvert(),
             nb::arg("unknown"))
        .def("merge", &merge<MergesByScore>, nb::arg("text"))
        .def("any_holds",
             [](const MergesByScore& merges, const nb::str& mark, const nb::str& before) {
                 return merges.any_holds(utf8_of(mark), utf8_of(before));
             },
             nb::arg("mark"), nb::arg("before"));
}

}  // namespace taximeter
