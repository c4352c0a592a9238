// Lines of transcripts, as tuples; and whole transcripts, as columns.
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "transcripts/call_names.h"
#include "transcripts/usual_lines.h"
#include "transcripts/whole_file.h"

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;
using std::string_view;

nb::object text_of(string_view utf8) {
    PyObject* made = PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

nb::object text_of(const RawText& text) {
    if (!text.escaped) return text_of(text.raw);
    std::string plain;
    plain.reserve(text.raw.size());
    for (size_t at = 0; at < text.raw.size(); ++at) {
        if (text.raw[at] == '\\') ++at;  // what stands behind it stands for itself
        plain.push_back(text.raw[at]);
    }
    return text_of(string_view(plain));
}

template <typename Text>
nb::object text_or_none(const std::optional<Text>& text) {
    return text ? text_of(*text) : nb::none();
}

nb::object common_of(const CommonFields& common) {
    return nb::make_tuple(text_or_none(common.session), text_or_none(common.folder), text_or_none(common.branch),
                          text_or_none(common.agent), common.sidechain, text_of(common.model), text_or_none(common.tier),
                          text_or_none(common.speed), text_or_none(common.geography));
}

nb::object stored(string_view stamp) {
    std::string text(stamp.substr(0, 23));
    text[10] = ' ';
    return text_of(string_view(text.append("000")));
}

nb::object leaves_of(const FoundLine& line) {
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(kLeaves)));
    if (!made.is_valid()) throw nb::python_error();
    for (size_t leaf = 0; leaf < kLeaves; ++leaf)
        PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(leaf), PyLong_FromLongLong(line.leaves[leaf]));
    return made;
}

nb::list usage_lines(const Input& buffer, size_t first, size_t end) {
    const auto* const bytes = checked<const std::uint8_t>("buffer", buffer, {kAny});
    if (first > end || end > static_cast<size_t>(size(buffer, 0))) refuse("these lines are not in the buffer");
    const string_view lines(reinterpret_cast<const char*>(bytes) + first, end - first);
    std::vector<FoundLine> found;
    {
        const nb::gil_scoped_release released;
        found = find_usage_lines(lines);
    }
    nb::list made;
    const CommonFields* shared = nullptr;
    nb::object common;
    for (const FoundLine& line : found) {
        if (!line.usual) {
            made.append(nb::make_tuple(first + line.begin, first + line.end));
            continue;
        }
        if (shared == nullptr || *shared != line.common) {
            shared = &line.common;
            common = common_of(line.common);
        }
        made.append(nb::make_tuple(first + line.begin, stored(line.stamp), text_of(line.message_id),
                                   text_or_none(line.request_id), leaves_of(line), common));
    }
    return made;
}

// An array of its own, [rows] or [rows, columns], filled by `fill`.
template <typename T, typename Fill>
nb::object filled(std::initializer_list<size_t> shape, Fill&& fill) {
    size_t count = 1;
    for (const size_t each : shape) count *= each;
    auto* const data = new T[std::max<size_t>(count, 1)];
    const nb::capsule owner(data, [](void* mine) noexcept { delete[] static_cast<T*>(mine); });
    fill(data);
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

nb::tuple columns(const FoundFile& file) {
    const auto& calls = file.calls;
    const auto digests = filled<std::uint8_t>({calls.size(), std::tuple_size_v<CallDigest>}, [&](std::uint8_t* into) {
        for (const FoundCall& call : calls) into = std::copy(call.digest.begin(), call.digest.end(), into);
    });
    nb::list request_ids;
    for (const FoundCall& call : calls) request_ids.append(text_or_none(call.request_id));
    const auto at = filled<int64_t>({calls.size()}, [&](int64_t* into) {
        for (const FoundCall& call : calls) *into++ = microseconds_of(call.stamp);
    });
    const auto leaves = filled<int64_t>({kLeaves, calls.size()}, [&](int64_t* into) {
        for (size_t leaf = 0; leaf < kLeaves; ++leaf)
            for (const FoundCall& call : calls) *into++ = call.leaves[leaf];
    });
    return nb::make_tuple(digests, request_ids, at, leaves);
}

nb::list runs(const FoundFile& file) {
    nb::list made;
    for (const FoundRun& run : file.runs) made.append(nb::make_tuple(common_of(run.common), run.end));
    return made;
}

std::vector<FoundFile> usage_calls(string_view source, const std::vector<std::tuple<nb::bytes, int64_t>>& files,
                                   size_t block_bytes, size_t most_line_bytes, size_t began_bytes,
                                   size_t before_last_bytes) {
    if (block_bytes == 0) refuse("blocks have at least a byte");
    for (const auto& [path, offset] : files) {
        if (offset < 0) refuse("a file begins at 0");
        if (std::strlen(path.c_str()) != path.size()) refuse("a path has no zero in it");
    }
    const ReadingSizes sizes{block_bytes, most_line_bytes, began_bytes, before_last_bytes};
    const nb::gil_scoped_release released;
    std::vector<FoundFile> found;
    found.reserve(files.size());
    const CallNames names(source);
    std::vector<char> room;
    for (const auto& [path, offset] : files) found.push_back(find_usage_calls(names, path.c_str(), offset, sizes, room));
    return found;
}

}  // namespace

void bind_transcripts(nb::module_& m) {
    m.def("usage_lines", &usage_lines, nb::arg("buffer"), nb::arg("first"), nb::arg("end"));
    nb::class_<FoundFile>(m, "FoundFile")
        .def_ro("is_plain", &FoundFile::is_plain)
        .def_ro("device", &FoundFile::device)
        .def_ro("inode", &FoundFile::inode)
        .def_ro("size", &FoundFile::size)
        .def_ro("modified_ns", &FoundFile::modified_ns)
        .def_prop_ro("began", [](const FoundFile& file) { return nb::bytes(file.began.data(), file.began.size()); })
        .def_prop_ro("before_last",
                     [](const FoundFile& file) { return nb::bytes(file.before_last.data(), file.before_last.size()); })
        .def_ro("read_bytes", &FoundFile::read_bytes)
        .def_ro("begin", &FoundFile::begin)
        .def_ro("end", &FoundFile::end)
        .def_ro("last_begin", &FoundFile::last_begin)
        .def("columns", &columns)
        .def("runs", &runs);
    m.def("usage_calls", &usage_calls, nb::arg("source"), nb::arg("files"), nb::arg("block_bytes"),
          nb::arg("most_line_bytes"), nb::arg("began_bytes"), nb::arg("before_last_bytes"));
}

}  // namespace taximeter
