// A vocabulary's texts, and text merged into ids.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "tokenizer/merges_by_rank.h"
#include "tokenizer/merges_by_score.h"
#include "tokenizer/texts.h"
#include "tokenizer/words.h"

namespace taximeter {
namespace {

using std::int32_t;
using std::int64_t;
using std::size_t;

// What is shorter is merged before anybody who waits for the interpreter could have taken it.
constexpr size_t kLongBytes = 1024;

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

// The ids of all tokens that are called one of some names, the empty one not among them.
std::vector<int64_t> ids_of(const Texts& texts, const std::vector<nb::str>& names) {
    std::vector<std::string_view> wanted;
    for (const nb::str& name : names) wanted.push_back(utf8_of(name));
    std::sort(wanted.begin(), wanted.end());
    std::array<bool, 256> may_begin{};
    for (const std::string_view name : wanted)
        if (!name.empty()) may_begin[static_cast<unsigned char>(name.front())] = true;
    std::vector<int64_t> ids;
    for (size_t at = 0; at < texts.size(); ++at) {
        const std::string_view text = texts[at];
        if (text.empty() || !may_begin[static_cast<unsigned char>(text.front())]) continue;
        if (std::binary_search(wanted.begin(), wanted.end(), text)) ids.push_back(static_cast<int64_t>(at));
    }
    return ids;
}

std::span<const int32_t> token_ids(const char* name, const Input& array, const Texts& texts) {
    const auto ids = flat<int32_t>(name, array);
    for (const int32_t id : ids)
        if (id < kNone || id >= static_cast<int64_t>(texts.size())) refuse(std::string(name) + " has a token that is not there");
    return ids;
}

std::vector<WordStep> word_steps(const std::vector<nb::str>& names) {
    std::vector<WordStep> steps;
    for (const nb::str& name : names) {
        const auto step = word_step_named(utf8_of(name));
        if (!step) refuse("no way to cut text into words has that name");
        steps.push_back(*step);
    }
    return steps;
}

// One cut after the other as a whole, for tests.
std::vector<nb::str> words(const std::vector<nb::str>& steps, const nb::str& text) {
    const std::string_view utf8 = utf8_of(text);
    std::vector<nb::str> made;
    size_t begin = 0;
    for (const std::uint32_t end : word_ends(utf8, word_steps(steps))) {
        made.push_back(nb::str(utf8.data() + begin, end - begin));
        begin = end;
    }
    return made;
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
                 const auto from = flat<std::uint8_t>("bytes", bytes);
                 const auto where = flat<int64_t>("starts", starts);
                 const nb::gil_scoped_release released;
                 new (made) Texts(from, where);
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
    m.def("words", &words, nb::arg("steps"), nb::arg("text"));
    nb::class_<MergesByRank>(m, "MergesByRank")
        .def("__init__",
             [](MergesByRank* made, std::shared_ptr<const Texts> texts, const Input& mergeable, const Texts& merges,
                const Input& of_bytes, const Texts& alphabet, const std::vector<nb::str>& steps, bool whole_words) {
                 const auto bytes = token_ids("of_bytes", of_bytes, *texts);
                 const auto wanted = flat<bool>("mergeable", mergeable);
                 auto cuts = word_steps(steps);
                 const nb::gil_scoped_release released;
                 new (made) MergesByRank(std::move(texts), wanted, merges, bytes, alphabet, std::move(cuts), whole_words);
             },
             nb::arg("texts"), nb::arg("mergeable").noconvert(), nb::arg("merges"), nb::arg("of_bytes").noconvert(),
             nb::arg("alphabet"), nb::arg("steps"), nb::arg("whole_words"))
        .def("merge", &merge<MergesByRank>, nb::arg("text"));
    nb::class_<MergesByScore>(m, "MergesByScore")
        .def("__init__",
             [](MergesByScore* made, std::shared_ptr<const Texts> texts, const Input& mergeable, const Input& scores,
                const Input& of_bytes, int32_t unknown) {
                 const auto bytes = token_ids("of_bytes", of_bytes, *texts);
                 if (unknown < kNone || unknown >= static_cast<int64_t>(texts->size()))
                     refuse("unknown is a token that is not there");
                 const auto wanted = flat<bool>("mergeable", mergeable);
                 const auto of_pieces = flat<float>("scores", scores);
                 const nb::gil_scoped_release released;
                 new (made) MergesByScore(std::move(texts), wanted, of_pieces, bytes, unknown);
             },
             nb::arg("texts"), nb::arg("mergeable").noconvert(), nb::arg("scores").noconvert(), nb::arg("of_bytes").noconvert(),
             nb::arg("unknown"))
        .def("merge", &merge<MergesByScore>, nb::arg("text"))
        .def("any_holds",
             [](const MergesByScore& merges, const nb::str& mark, const nb::str& before) {
                 const std::string_view wanted = utf8_of(mark), ends = utf8_of(before);
                 const nb::gil_scoped_release released;
                 return merges.any_holds(wanted, ends);
             },
             nb::arg("mark"), nb::arg("before"));
}

}  // namespace taximeter
