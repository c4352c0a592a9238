#include "memory.h"

#include <sys/mman.h>

#include <limits>
#include <new>

namespace taximeter {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Memory::Memory(std::size_t bytes, Pages pages) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
    // Small buffers are not worth a huge page each; the huge ones begin at its border.
    const bool huge = pages == Pages::huge && bytes >= kHugePage;
    mapped_bytes_ = huge ? bytes + kHugePage : bytes;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) {
        mapped_ = nullptr;
        throw std::bad_alloc();
    }
    auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    if (huge) address = (address + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<std::uint8_t*>(address);
#if defined(MADV_HUGEPAGE)
    // Refused where the system has no huge pages, which only costs speed.
    if (huge) (void)madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

}  // namespace taximeter
