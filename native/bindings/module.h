// Each file of this folder adds its part to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace taximeter {

void bind_attention(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);
void bind_limits(nanobind::module_& m);
void bind_packed(nanobind::module_& m);
void bind_sqlite_rows(nanobind::module_& m);  // where SQLite's headers were there
void bind_tokenizer(nanobind::module_& m);
void bind_transcripts(nanobind::module_& m);

}  // namespace taximeter
