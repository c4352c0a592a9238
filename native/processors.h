// How many processors this process may keep busy.
#pragma once

#include <string>

namespace taximeter {

// The fewest of: those the process may run on, and those its control group pays for, rounded up (Linux, cgroup v2:
// `cpu.max` of the group and of all above it). At least one. `root` is put before the paths it reads.
int usable_processors(const std::string& root = "");

}  // namespace taximeter
