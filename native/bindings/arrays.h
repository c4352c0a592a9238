// Arrays as Python hands them over: everything a kernel relies on is checked, and nothing is converted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace nb = nanobind;

namespace taximeter {

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;

constexpr std::int64_t kAny = -1;

[[noreturn]] inline void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// The data of an array that is C-contiguous, on the CPU, of T and of `shape` (kAny: any size on that axis).
template <typename T, typename Array>
T* checked(const char* name, const Array& array, std::initializer_list<std::int64_t> shape) {
    const std::string subject(name);
    if (array.device_type() != nb::device::cpu::value) refuse(subject + " is not in main memory");
    if (array.dtype() != nb::dtype<std::remove_const_t<T>>()) refuse(subject + " has the wrong dtype");
    if (array.ndim() != shape.size()) refuse(subject + " has " + std::to_string(array.ndim()) + " dimensions, not " +
                                             std::to_string(shape.size()));
    std::size_t axis = 0;
    for (const std::int64_t size : shape) {
        const auto have = static_cast<std::int64_t>(array.shape(axis));
        if (size != kAny && have != size) {
            refuse(subject + " has size " + std::to_string(have) + " on axis " + std::to_string(axis) + ", not " +
                   std::to_string(size));
        }
        ++axis;
    }
    if (array.size() == 0) return static_cast<T*>(array.data());  // its strides mean nothing
    std::int64_t stride = 1;
    for (axis = array.ndim(); axis-- > 0;) {
        if (array.shape(axis) > 1 && array.stride(axis) != stride) refuse(subject + " is not C-contiguous");
        stride *= static_cast<std::int64_t>(array.shape(axis));
    }
    return static_cast<T*>(array.data());
}

template <typename Array>
std::int64_t size(const Array& array, std::size_t axis) {
    return static_cast<std::int64_t>(array.shape(axis));
}

}  // namespace taximeter
