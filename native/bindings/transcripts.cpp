// Lines of transcripts, as tuples; and whole transcripts, as columns.
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
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

// A list with one object for each call from `first` on and before `end`.
template <typename Made>
nb::object column(const FoundFile& file, size_t first, size_t end, Made&& made) {
    nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(end - first)));
    if (!list.is_valid()) throw nb::python_error();
    for (size_t place = first; place < end; ++place)
        PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(place - first), made(file.calls[place]).release().ptr());
    return list;
}

nb::object number(int64_t value) {
    PyObject* made = PyLong_FromLongLong(value);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

nb::list columns(const FoundFile& file) {
    nb::list runs;
    size_t first = 0;
    for (const FoundRun& run : file.runs) {
        const auto of_run = [&](auto&& made) { return column(file, first, run.end, made); };
        nb::list leaves;
        for (size_t leaf = 0; leaf < kLeaves; ++leaf)
            leaves.append(of_run([&](const FoundCall& call) { return number(call.leaves[leaf]); }));
        runs.append(nb::make_tuple(common_of(run.common), of_run([](const FoundCall& call) { return text_of(call.message_id); }),
                                   of_run([](const FoundCall& call) { return text_or_none(call.request_id); }),
                                   of_run([](const FoundCall& call) { return stored(call.stamp); }), leaves));
        first = run.end;
    }
    return runs;
}

std::vector<FoundFile> usage_calls(const std::vector<std::tuple<int, int64_t, int64_t>>& files, size_t block_bytes,
                                   size_t most_line_bytes) {
    if (block_bytes == 0) refuse("blocks have at least a byte");
    for (const auto& [descriptor, offset, size] : files)
        if (offset < 0 || size < 0) refuse("a file begins at 0");
    const nb::gil_scoped_release released;
    std::vector<FoundFile> found;
    found.reserve(files.size());
    std::vector<char> room;
    for (const auto& [descriptor, offset, size] : files)
        found.push_back(find_usage_calls(descriptor, offset, size, block_bytes, most_line_bytes, room));
    return found;
}

}  // namespace

void bind_transcripts(nb::module_& m) {
    m.def("usage_lines", &usage_lines, nb::arg("buffer"), nb::arg("first"), nb::arg("end"));
    nb::class_<FoundFile>(m, "FoundFile")
        .def_ro("is_plain", &FoundFile::is_plain)
        .def_ro("read_bytes", &FoundFile::read_bytes)
        .def_ro("end", &FoundFile::end)
        .def_ro("last_begin", &FoundFile::last_begin)
        .def("columns", &columns);
    m.def("usage_calls", &usage_calls, nb::arg("files"), nb::arg("block_bytes"), nb::arg("most_line_bytes"));
}

}  // namespace taximeter
