// What the machine can do at most, as Python asks for it.
#include "limits/limits.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/arrays.h"
#include "bindings/levels.h"
#include "bindings/module.h"
#include "threads.h"

namespace taximeter {
namespace {

void check_threads(int threads) {
    if (threads < 1 || threads > kMostThreads) refuse("no machine has " + std::to_string(threads) + " threads");
}

Unit unit_named(const std::string& name) {
    if (name == "int8") return Unit::int8;
    if (name == "bf16") return Unit::bf16;
    if (name == "f32") return Unit::f32;
    refuse("no unit " + name);
}

}  // namespace

void bind_limits(nb::module_& m) {
    m.def(
        "read_gb_per_s",
        [](const std::string& level, int threads, std::size_t bytes, double seconds) {
            const CpuLevel known = level_named(level);
            check_threads(threads);
            const nb::gil_scoped_release released;
            return read_gb_per_s(known, threads, bytes, seconds);
        },
        nb::arg("level"), nb::arg("threads"), nb::arg("bytes"), nb::arg("seconds"));
    m.def(
        "gop_per_s",
        [](const std::string& level, const std::string& unit, int threads, double seconds) {
            const CpuLevel known = level_named(level);
            const Unit wanted = unit_named(unit);
            check_threads(threads);
            const nb::gil_scoped_release released;
            return gop_per_s(known, wanted, threads, seconds);
        },
        nb::arg("level"), nb::arg("unit"), nb::arg("threads"), nb::arg("seconds"));
}

}  // namespace taximeter
