// Levels by name.
#pragma once

#include <string>
#include <vector>

#include "dispatch.h"

namespace taximeter {

std::vector<std::string> runnable_levels();              // slow to fast
CpuLevel level_named(const std::string& name);           // ValueError unless this processor runs it

}  // namespace taximeter
