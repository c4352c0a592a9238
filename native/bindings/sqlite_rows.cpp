// Columns of Python's objects, as rows for SQLite.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "sqlite_rows/sqlite_rows.h"

namespace nb = nanobind;

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;

[[noreturn]] void refuse(const char* message) { throw nb::value_error(message); }

int64_t number_of(nb::handle object) {
    const long long number = PyLong_AsLongLong(object.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return number;
}

RowValue value_of(nb::handle object) {
    if (object.is_none()) return {};
    if (PyUnicode_Check(object.ptr())) {
        Py_ssize_t size = 0;
        const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
        if (text == nullptr) throw nb::python_error();
        if (size > INT32_MAX) refuse("a text of more than 2 GB");
        return {size, text, RowValue::Kind::kText};
    }
    if (!PyLong_Check(object.ptr())) refuse("a row has texts, whole numbers and None");
    return {number_of(object), nullptr, RowValue::Kind::kNumber};
}

// Rows in the order of their numbers, which are all from the smallest on without one that is missing.
class ColumnRows {
  public:
    ColumnRows(nb::tuple numbers, nb::list columns) {
        const size_t count = nb::len(numbers), width = nb::len(columns) + 1;
        if (count == 0) refuse("there are no rows");
        if (width > kMostRowColumns) refuse("there are more columns than a row can have");
        Rows rows;
        rows.columns = width;
        rows.values.resize(count * width);
        const std::vector<size_t> places = places_of(numbers, rows);
        for (size_t column = 1; column < width; ++column) {
            size_t from = 0;
            const nb::object pieces = columns[column - 1];
            if (!PyList_Check(pieces.ptr())) refuse("a column is a list of pieces");
            for (const nb::handle piece : pieces) from = fill(rows, column, places, from, piece);
            if (from != count) refuse("a column has another length than the others");
        }
        offered_ = std::make_unique<OfferedRows>(std::move(rows));
    }

    int64_t handle() const { return offered_->handle(); }

  private:
    static std::vector<size_t> places_of(const nb::tuple& numbers, Rows& rows) {
        const size_t count = nb::len(numbers);
        std::vector<int64_t> given;
        given.reserve(count);
        for (const nb::handle number : numbers) given.push_back(number_of(number));
        int64_t first = given[0];
        for (const int64_t number : given) first = std::min(first, number);
        std::vector<size_t> places;
        places.reserve(count);
        for (const int64_t number : given) {
            const auto place = static_cast<std::uint64_t>(number) - static_cast<std::uint64_t>(first);
            if (place >= count) refuse("numbers of rows are some in a row");
            RowValue& cell = rows.values[place * rows.columns];
            if (cell.kind != RowValue::Kind::kNothing) refuse("numbers of rows are some in a row");
            cell = {number, nullptr, RowValue::Kind::kNumber};
            places.push_back(place);
        }
        return places;
    }

    // A piece is a tuple of values, or one that so many rows have: what is kept of either keeps its texts.
    size_t fill(Rows& rows, size_t column, const std::vector<size_t>& places, size_t from, nb::handle piece) {
        nb::object values = nb::borrow(piece);
        if (!PyTuple_Check(piece.ptr()) || PyTuple_Size(piece.ptr()) != 2) refuse("a piece has values, and how many");
        values = nb::borrow(PyTuple_GetItem(piece.ptr(), 0));
        const int64_t count = number_of(PyTuple_GetItem(piece.ptr(), 1));
        if (count < 0 || static_cast<std::uint64_t>(count) > places.size() - from)
            refuse("a column has another length than the others");
        const size_t end = from + static_cast<size_t>(count);
        kept_.push_back(values);
        if (PyTuple_Check(values.ptr())) {
            if (PyTuple_Size(values.ptr()) != static_cast<Py_ssize_t>(count)) refuse("a piece has values, and how many");
            for (size_t place = from; place < end; ++place)
                rows.values[places[place] * rows.columns + column] =
                    value_of(PyTuple_GetItem(values.ptr(), static_cast<Py_ssize_t>(place - from)));
        } else {
            const RowValue value = value_of(values);
            for (size_t place = from; place < end; ++place) rows.values[places[place] * rows.columns + column] = value;
        }
        return end;
    }

    std::vector<nb::object> kept_;  // goes after what is offered
    std::unique_ptr<OfferedRows> offered_;
};

}  // namespace

void bind_sqlite_rows(nb::module_& m) {
    m.def("sqlite_rows_entry", [] { return reinterpret_cast<std::uintptr_t>(entry_of_rows()); });
    nb::class_<ColumnRows>(m, "ColumnRows")
        .def(nb::init<nb::tuple, nb::list>(), nb::arg("numbers"), nb::arg("columns"))
        .def_prop_ro("handle", &ColumnRows::handle);
}

}  // namespace taximeter
