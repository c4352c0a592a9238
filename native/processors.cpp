#include "processors.h"

#include <algorithm>
#include <fstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace taximeter {
namespace {

int allowed() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());  // 0 when it is not known
}

// "0::/some/group" is the line of version 2. Without one the group at the top is all there can be.
std::string own_group(const std::string& root) {
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        if (line.starts_with("0::/")) return line.substr(3);
    }
    return "/";
}

// `count`, or what "<quota> <period>" in that file leaves of it. "max <period>", and no file, leave all.
int within_quota(int count, const std::string& file) {
    std::ifstream text(file);
    long long quota = 0, period = 0;
    if (!(text >> quota >> period) || quota <= 0 || period <= 0) return count;
    return static_cast<int>(std::min<long long>(count, (quota - 1) / period + 1));
}

}  // namespace

int usable_processors(const std::string& root) {
    int count = std::max(1, allowed());
    // In a container the path may be the host's and not be there; the group at the top then is the container's own.
    for (std::string group = own_group(root);; group.resize(group.rfind('/'))) {
        count = within_quota(count, root + "/sys/fs/cgroup" + group + "/cpu.max");
        if (group.empty()) return count;
    }
}

}  // namespace taximeter
