#include "sqlite_rows/sqlite_rows.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

namespace taximeter {
namespace {

std::mutex offered_lock;
std::unordered_map<std::int64_t, std::shared_ptr<const Rows>> offered;
std::int64_t last_handle = 0;
const std::shared_ptr<const Rows> no_rows = std::make_shared<const Rows>();

std::shared_ptr<const Rows> rows_of(std::int64_t handle) {
    if (handle == 0) return no_rows;
    const std::lock_guard held(offered_lock);
    const auto found = offered.find(handle);
    return found == offered.end() ? nullptr : found->second;
}

struct Cursor {
    sqlite3_vtab_cursor base;  // has to be the first
    std::shared_ptr<const Rows> rows;
    std::size_t at = 0;
};

Cursor* of(sqlite3_vtab_cursor* cursor) { return reinterpret_cast<Cursor*>(cursor); }

int connect(sqlite3* database, void*, int, const char* const*, sqlite3_vtab** made, char**) {
    std::string declared = "CREATE TABLE x(";
    for (std::size_t column = 0; column < kMostRowColumns; ++column)
        declared.append("c").append(std::to_string(column)).append(", ");
    declared += "handle HIDDEN)";
    const int declares = sqlite3_declare_vtab(database, declared.c_str());
    if (declares != SQLITE_OK) return declares;
    *made = static_cast<sqlite3_vtab*>(sqlite3_malloc(sizeof(sqlite3_vtab)));
    if (*made == nullptr) return SQLITE_NOMEM;
    **made = sqlite3_vtab{};
    return sqlite3_vtab_config(database, SQLITE_VTAB_DIRECTONLY);
}

int disconnect(sqlite3_vtab* table) {
    sqlite3_free(table);
    return SQLITE_OK;
}

// Only rows of one handle can be gone through.
int best_index(sqlite3_vtab*, sqlite3_index_info* info) {
    for (int place = 0; place < info->nConstraint; ++place) {
        const auto& constraint = info->aConstraint[place];
        if (!constraint.usable || constraint.iColumn != static_cast<int>(kMostRowColumns) ||
            constraint.op != SQLITE_INDEX_CONSTRAINT_EQ)
            continue;
        info->aConstraintUsage[place].argvIndex = 1;
        info->aConstraintUsage[place].omit = 1;
        info->estimatedCost = 1;
        return SQLITE_OK;
    }
    return SQLITE_CONSTRAINT;
}

int open(sqlite3_vtab*, sqlite3_vtab_cursor** made) {
    auto* const cursor = new (std::nothrow) Cursor{};
    if (cursor == nullptr) return SQLITE_NOMEM;
    *made = &cursor->base;
    return SQLITE_OK;
}

int close(sqlite3_vtab_cursor* cursor) {
    delete of(cursor);
    return SQLITE_OK;
}

int filter(sqlite3_vtab_cursor* cursor, int, const char*, int count, sqlite3_value** values) {
    Cursor* const mine = of(cursor);
    mine->at = 0;
    mine->rows = count == 1 ? rows_of(sqlite3_value_int64(values[0])) : nullptr;
    if (mine->rows != nullptr) return SQLITE_OK;
    sqlite3_free(cursor->pVtab->zErrMsg);
    cursor->pVtab->zErrMsg = sqlite3_mprintf("nobody offers rows by this handle");
    return SQLITE_ERROR;
}

int next(sqlite3_vtab_cursor* cursor) {
    ++of(cursor)->at;
    return SQLITE_OK;
}

int is_over(sqlite3_vtab_cursor* cursor) { return of(cursor)->at >= of(cursor)->rows->count; }

void give(sqlite3_context* context, const RowValue& value) {
    switch (value.kind) {
        case RowValue::Kind::kNothing: break;
        case RowValue::Kind::kNumber: sqlite3_result_int64(context, value.number); break;
        case RowValue::Kind::kText:
            sqlite3_result_text(context, value.text, static_cast<int>(value.number), SQLITE_STATIC);
    }
}

// What a column has for the row `at`.
struct Giving {
    sqlite3_context* context;
    std::size_t at;

    void operator()(const OneForAll& column) const { give(context, column.value); }
    void operator()(const Numbers& column) const { sqlite3_result_int64(context, column.values[at]); }
    void operator()(const Texts& column) const {
        const char* const text = column.bytes.data() + at * column.width;
        sqlite3_result_text(context, text, static_cast<int>(::strnlen(text, column.width)), SQLITE_STATIC);
    }
    void operator()(const Values& column) const { give(context, column.values[at]); }
    void operator()(const Shared& column) const { give(context, column.values[(*column.which)[at]]); }
};

int column(sqlite3_vtab_cursor* cursor, sqlite3_context* context, int column) {
    const Cursor* const mine = of(cursor);
    if (column < 0 || static_cast<std::size_t>(column) >= mine->rows->columns.size()) return SQLITE_OK;  // there is nothing
    std::visit(Giving{context, mine->at}, mine->rows->columns[static_cast<std::size_t>(column)]);
    return SQLITE_OK;
}

int row_id(sqlite3_vtab_cursor* cursor, sqlite3_int64* id) {
    *id = static_cast<sqlite3_int64>(of(cursor)->at);
    return SQLITE_OK;
}

sqlite3_module module_of_rows() {
    sqlite3_module made{};
    made.xConnect = connect;
    made.xDisconnect = disconnect;
    made.xBestIndex = best_index;
    made.xOpen = open;
    made.xClose = close;
    made.xFilter = filter;
    made.xNext = next;
    made.xEof = is_over;
    made.xColumn = column;
    made.xRowid = row_id;
    return made;
}

int make_known(sqlite3* database, char**, const sqlite3_api_routines* api) {
    if (api == nullptr) return SQLITE_OK;  // a SQLite that was built without extensions
    SQLITE_EXTENSION_INIT2(api);
    static const sqlite3_module module = module_of_rows();
    return sqlite3_create_module_v2(database, "taximeter_rows", &module, nullptr, nullptr);
}

}  // namespace

OfferedRows::OfferedRows(Rows rows) {
    auto shared = std::make_shared<const Rows>(std::move(rows));
    const std::lock_guard held(offered_lock);
    handle_ = ++last_handle;
    offered.emplace(handle_, std::move(shared));
}

OfferedRows::~OfferedRows() {
    const std::lock_guard held(offered_lock);
    offered.erase(handle_);
}

void* entry_of_rows() { return reinterpret_cast<void*>(&make_known); }

}  // namespace taximeter
