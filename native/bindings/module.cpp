#include "bindings/module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bindings/arrays.h"
#include "bindings/levels.h"
#include "processors.h"
#include "threads.h"

namespace taximeter {
namespace {

constexpr struct {
    const char* name;
    CpuLevel level;
} kLevels[] = {{"portable", CpuLevel::portable},
               {"avx2", CpuLevel::avx2},
               {"avx512", CpuLevel::avx512},
               {"avx512_bf16", CpuLevel::avx512_bf16},
               {"amx", CpuLevel::amx}};

}  // namespace

std::vector<std::string> runnable_levels() {
    std::vector<std::string> names;
    for (const auto& [name, level] : kLevels)
        if (level <= cpu_level()) names.emplace_back(name);
    return names;
}

CpuLevel level_named(const std::string& wanted) {
    for (const auto& [name, level] : kLevels)
        if (wanted == name && level <= cpu_level()) return level;
    refuse("this processor has no level " + wanted);
}

}  // namespace taximeter

NB_MODULE(_native, m) {
    using namespace taximeter;
    nb::set_leak_warnings(false);  // a model lives as long as the process, and the interpreter need not take it apart
    m.doc() = "Taximeter's native code: one forward pass, and the kernels it is made of.";
    m.def("levels", &runnable_levels, "Levels that this processor and its operating system run, slow to fast.");
    m.def("usable_processors", &usable_processors, nb::arg("root"));
    m.def("threads", [] { return thread_pool().threads(); });
    m.def("set_threads", [](int count) {
        if (count < 1 || count > kMostThreads) refuse("kernels run on 1 to " + std::to_string(kMostThreads) + " threads");
        const nb::gil_scoped_release released;
        thread_pool().resize(count);
    });
    bind_packed(m);
    bind_attention(m);
    bind_decoder(m);
    bind_limits(m);
#if TAXIMETER_SQLITE_ROWS
    bind_sqlite_rows(m);
#endif
    bind_tokenizer(m);
    bind_transcripts(m);
}
