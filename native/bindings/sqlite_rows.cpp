// Columns of arrays and of Python's objects, as rows for SQLite.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "sqlite_rows/sqlite_rows.h"

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;

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
        if (size > INT32_MAX) refuse("a text of a row has more than 2 GB");
        return {size, text, RowValue::Kind::kText};
    }
    if (!PyLong_Check(object.ptr())) refuse("a row has texts, whole numbers and None");
    return {number_of(object), nullptr, RowValue::Kind::kNumber};
}

// Some rows of a column, one behind the other in the order in which it was told.
struct Piece {
    enum class Kind : std::uint8_t { kOne, kSeveral, kNumbers, kTexts };

    Kind kind = Kind::kOne;
    nb::object object;  // one value, or a tuple of several
    Input array;
    size_t count = 0;
    size_t width = 0;
};

Piece piece_of(nb::handle told, size_t at_most) {
    if (!PyTuple_Check(told.ptr()) || PyTuple_Size(told.ptr()) != 2) refuse("a piece has values, and how many");
    Piece piece;
    piece.object = nb::borrow(PyTuple_GetItem(told.ptr(), 0));
    const int64_t count = number_of(PyTuple_GetItem(told.ptr(), 1));
    if (count < 0 || static_cast<std::uint64_t>(count) > at_most) refuse("a column has another length than the others");
    piece.count = static_cast<size_t>(count);
    if (PyTuple_Check(piece.object.ptr())) {
        piece.kind = Piece::Kind::kSeveral;
        if (PyTuple_Size(piece.object.ptr()) != static_cast<Py_ssize_t>(count)) refuse("a piece has values, and how many");
    } else if (nb::try_cast<Input>(piece.object, piece.array)) {
        if (piece.array.ndim() == 1) {
            piece.kind = Piece::Kind::kNumbers;
            checked<const int64_t>("a piece of a column", piece.array, {count});
        } else {
            piece.kind = Piece::Kind::kTexts;
            checked<const std::uint8_t>("a piece of a column", piece.array, {count, kAny});
            piece.width = static_cast<size_t>(size(piece.array, 1));
            if (piece.width > INT32_MAX) refuse("a text of a row has more than 2 GB");
        }
    }
    return piece;
}

// Rows in the order of their numbers, which are all from the smallest on without one that is missing.
class ColumnRows {
  public:
    ColumnRows(const Input& numbers, const nb::list& columns) {
        const auto* const given = checked<const int64_t>("the rows' numbers", numbers, {kAny});
        const auto count = static_cast<size_t>(size(numbers, 0));
        if (count == 0) refuse("there are no rows");
        if (nb::len(columns) + 1 > kMostRowColumns) refuse("there are more columns than a row can have");
        rows_.count = count;
        places_ = places_of(given, count);
        rows_.columns.emplace_back(numbers_in_order(given, places_));
        for (const nb::handle column : columns) rows_.columns.push_back(column_of(column, places_));
    }

    // One column more, as long as nobody was given the handle.
    void add(const nb::object& column) {
        if (offered_ != nullptr) refuse("rows that are offered stay as they are");
        if (rows_.columns.size() >= kMostRowColumns) refuse("there are more columns than a row can have");
        rows_.columns.push_back(column_of(column, places_));
    }

    int64_t handle() {
        if (offered_ == nullptr) {
            offered_ = std::make_unique<OfferedRows>(std::move(rows_));
            places_ = {};
        }
        return offered_->handle();
    }

  private:
    static std::vector<size_t> places_of(const int64_t* given, size_t count) {
        const int64_t first = *std::min_element(given, given + count);
        std::vector<size_t> places(count);
        std::vector<bool> taken(count);
        for (size_t at = 0; at < count; ++at) {
            const auto place = static_cast<std::uint64_t>(given[at]) - static_cast<std::uint64_t>(first);
            if (place >= count || taken[place]) refuse("numbers of rows are some in a row");
            taken[place] = true;
            places[at] = place;
        }
        return places;
    }

    static Numbers numbers_in_order(const int64_t* given, const std::vector<size_t>& places) {
        Numbers made{std::vector<int64_t>(places.size())};
        for (size_t at = 0; at < places.size(); ++at) made.values[places[at]] = given[at];
        return made;
    }

    RowColumn column_of(nb::handle told, const std::vector<size_t>& places) {
        if (!PyList_Check(told.ptr())) refuse("a column is a list of pieces");
        std::vector<Piece> pieces;
        size_t left = places.size();
        for (const nb::handle each : told) {
            pieces.push_back(piece_of(each, left));
            left -= pieces.back().count;
        }
        if (left != 0) refuse("a column has another length than the others");
        const auto all = [&](Piece::Kind kind) {
            return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.kind == kind; });
        };
        if (all(Piece::Kind::kNumbers)) return numbers_of(pieces, places);
        if (all(Piece::Kind::kTexts)) return texts_of(pieces, places);
        if (pieces.size() == 1 && pieces[0].kind == Piece::Kind::kOne) {
            kept_.push_back(pieces[0].object);
            return OneForAll{value_of(pieces[0].object)};
        }
        if (all(Piece::Kind::kOne)) return shared_of(pieces, places);
        return values_of(pieces, places);
    }

    // What rows belong to: columns whose pieces are as long as another's know by one array which piece a row is of.
    Shared shared_of(const std::vector<Piece>& pieces, const std::vector<size_t>& places) {
        Shared made;
        std::vector<size_t> counts;
        for (const Piece& piece : pieces) {
            kept_.push_back(piece.object);
            made.values.push_back(value_of(piece.object));
            counts.push_back(piece.count);
        }
        if (which_ == nullptr || counts != counts_) {
            std::vector<std::uint32_t> which(places.size());
            const size_t* place = places.data();
            for (size_t number = 0; number < counts.size(); ++number)
                for (size_t at = 0; at < counts[number]; ++at) which[*place++] = static_cast<std::uint32_t>(number);
            which_ = std::make_shared<const std::vector<std::uint32_t>>(std::move(which));
            counts_ = std::move(counts);
        }
        made.which = which_;
        return made;
    }

    static Numbers numbers_of(const std::vector<Piece>& pieces, const std::vector<size_t>& places) {
        Numbers made{std::vector<int64_t>(places.size())};
        const size_t* place = places.data();
        for (const Piece& piece : pieces) {
            const auto* const values = static_cast<const int64_t*>(piece.array.data());
            for (size_t at = 0; at < piece.count; ++at) made.values[*place++] = values[at];
        }
        return made;
    }

    static Texts texts_of(const std::vector<Piece>& pieces, const std::vector<size_t>& places) {
        Texts made;
        for (const Piece& piece : pieces) made.width = std::max(made.width, piece.width);
        made.bytes.resize(places.size() * made.width);
        const size_t* place = places.data();
        for (const Piece& piece : pieces) {
            const auto* const bytes = static_cast<const char*>(piece.array.data());
            for (size_t at = 0; at < piece.count; ++at)
                std::memcpy(made.bytes.data() + *place++ * made.width, bytes + at * piece.width, piece.width);
        }
        return made;
    }

    // Of whatever there is. What is kept of the pieces keeps their texts.
    Values values_of(const std::vector<Piece>& pieces, const std::vector<size_t>& places) {
        Values made{std::vector<RowValue>(places.size())};
        const size_t* place = places.data();
        for (const Piece& piece : pieces) {
            kept_.push_back(piece.object);
            const RowValue one = piece.kind == Piece::Kind::kOne ? value_of(piece.object) : RowValue{};
            for (size_t at = 0; at < piece.count; ++at) made.values[*place++] = value_at(piece, at, one);
        }
        return made;
    }

    static RowValue value_at(const Piece& piece, size_t at, const RowValue& one) {
        switch (piece.kind) {
            case Piece::Kind::kOne: break;
            case Piece::Kind::kSeveral: return value_of(PyTuple_GetItem(piece.object.ptr(), static_cast<Py_ssize_t>(at)));
            case Piece::Kind::kNumbers:
                return {static_cast<const int64_t*>(piece.array.data())[at], nullptr, RowValue::Kind::kNumber};
            case Piece::Kind::kTexts: {
                const auto* const text = static_cast<const char*>(piece.array.data()) + at * piece.width;
                return {static_cast<int64_t>(::strnlen(text, piece.width)), text, RowValue::Kind::kText};
            }
        }
        return one;
    }

    Rows rows_;  // until they are offered
    std::vector<size_t> places_;
    std::vector<size_t> counts_;  // of the pieces that `which_` is of
    std::shared_ptr<const std::vector<std::uint32_t>> which_;
    std::vector<nb::object> kept_;  // goes after what is offered
    std::unique_ptr<OfferedRows> offered_;
};

}  // namespace

void bind_sqlite_rows(nb::module_& m) {
    m.def("sqlite_rows_entry", [] { return reinterpret_cast<std::uintptr_t>(entry_of_rows()); });
    nb::class_<ColumnRows>(m, "ColumnRows")
        .def(nb::init<const Input&, const nb::list&>(), nb::arg("numbers"), nb::arg("columns"))
        .def("add", &ColumnRows::add, nb::arg("column"))
        .def_prop_ro("handle", &ColumnRows::handle);
}

}  // namespace taximeter
