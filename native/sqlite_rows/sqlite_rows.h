// Rows that Python has by columns, as a table that SQLite can select from.
//
// To bind a row's values and to take a step for each of them costs as much as to insert it. A statement that inserts what
// it selects from `taximeter_rows(HANDLE)` is one step, and needs no Python until it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

namespace taximeter {

constexpr std::size_t kMostRowColumns = 100;

// A text of `number` bytes, which somebody else keeps; a number, or nothing.
struct RowValue {
    enum class Kind : std::uint8_t { kNothing, kNumber, kText };

    std::int64_t number = 0;
    const char* text = nullptr;
    Kind kind = Kind::kNothing;
};

// What one column has for each row: one of these.
struct OneForAll {
    RowValue value;
};
struct Numbers {
    std::vector<std::int64_t> values;
};
struct Texts {  // of up to `width` bytes each, the rest of which are zeros
    std::size_t width = 0;
    std::vector<char> bytes;
};
struct Values {
    std::vector<RowValue> values;
};
struct Shared {  // few values, each of many rows; which of them a row has, several columns know together
    std::shared_ptr<const std::vector<std::uint32_t>> which;
    std::vector<RowValue> values;
};
using RowColumn = std::variant<OneForAll, Numbers, Texts, Values, Shared>;

struct Rows {
    std::size_t count = 0;
    std::vector<RowColumn> columns;
};

// What SQLite calls with each new connection to make `taximeter_rows` known there, once it was told to: see
// `sqlite3_auto_extension`. The table of no handle, 0, is empty.
void* entry_of_rows();

// Until it is gone, `taximeter_rows` of its handle gives these rows. What texts of values lie in has to stay for as long.
class OfferedRows {
  public:
    explicit OfferedRows(Rows rows);
    ~OfferedRows();
    OfferedRows(const OfferedRows&) = delete;
    OfferedRows& operator=(const OfferedRows&) = delete;

    std::int64_t handle() const { return handle_; }

  private:
    std::int64_t handle_;
};

}  // namespace taximeter
