// Large buffers in huge pages where the system gives them to those who ask: fewer misses of the address cache, and reads
// that are up to 40 % faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace taximeter {

// Zeroed memory, 64-byte aligned at least, whose pages cost nothing until they are touched. Throws std::bad_alloc.
class Memory {
public:
    Memory() = default;
    // Huge pages for what is read as a whole; `lazily` for what may never be touched, where a huge page would be a waste.
    enum class Pages { huge, lazily };
    Memory(std::size_t bytes, Pages pages);
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory();

    template <typename T = std::uint8_t>
    T* as() const noexcept {
        return reinterpret_cast<T*>(data_);
    }
    std::size_t bytes() const noexcept { return bytes_; }

private:
    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_, other.mapped_);
        std::swap(mapped_bytes_, other.mapped_bytes_);
    }

    std::uint8_t* data_ = nullptr;
    std::size_t bytes_ = 0;
    void* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
};

}  // namespace taximeter
