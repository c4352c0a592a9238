#include "tokenizer/texts.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace taximeter {
namespace {

constexpr std::size_t kLengthBytes = 8;

std::uint64_t length_at(const std::uint8_t* at) noexcept {
    std::uint64_t length = 0;
    for (std::size_t byte = 0; byte < kLengthBytes; ++byte) length |= std::uint64_t{at[byte]} << (8 * byte);
    return length;
}

std::size_t characters(std::string_view utf8) noexcept {
    return static_cast<std::size_t>(
        std::count_if(utf8.begin(), utf8.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    for (std::size_t at = 0; at < text.size();) {
        const unsigned lead = byte(at++);
        if (lead < 0x80) continue;
        const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || text.size() - at < more) return false;
        // What the second byte may be keeps out longer forms than needed, surrogates, and what lies past U+10FFFF.
        const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (byte(at) < low || byte(at) > high) return false;
        for (std::size_t next = 1; next < more; ++next)
            if ((byte(at + next) & 0xC0) != 0x80) return false;
        at += more;
    }
    return true;
}

std::vector<std::int64_t> string_starts(std::span<const std::uint8_t> bytes, std::uint64_t at, std::uint64_t count,
                                        std::uint64_t longest) {
    std::vector<std::int64_t> starts;
    if (at > bytes.size() || count > (bytes.size() - at) / kLengthBytes) return starts;
    starts.reserve(count + 1);
    for (std::uint64_t string = 0; string < count; ++string) {
        if (bytes.size() - at < kLengthBytes) return {};
        const std::uint64_t length = length_at(bytes.data() + at);
        starts.push_back(static_cast<std::int64_t>(at));
        at += kLengthBytes;
        if (length > longest || length > bytes.size() - at) return {};
        if (!is_utf8({reinterpret_cast<const char*>(bytes.data()) + at, static_cast<std::size_t>(length)})) return {};
        at += length;
    }
    starts.push_back(static_cast<std::int64_t>(at));
    return starts;
}

Texts::Texts(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> starts) {
    if (starts.empty() || starts.front() < 0 || static_cast<std::uint64_t>(starts.back()) > bytes.size())
        throw std::invalid_argument("texts begin or end outside their bytes");
    constexpr auto least = static_cast<std::int64_t>(kLengthBytes);
    for (std::size_t at = 0; at + 1 < starts.size(); ++at)
        if (starts[at + 1] < starts[at] || starts[at + 1] - starts[at] < least)
            throw std::invalid_argument("texts overlap");
    const std::size_t count = starts.size() - 1;
    const auto total = static_cast<std::uint64_t>(starts.back() - starts.front()) - count * kLengthBytes;
    if (total > std::numeric_limits<std::uint32_t>::max()) throw std::invalid_argument("texts of more than 4 GiB");
    bytes_.resize(total);
    ends_.reserve(count + 1);
    ends_.push_back(0);
    for (std::size_t at = 0; at < count; ++at) {
        const auto length = static_cast<std::size_t>(starts[at + 1] - starts[at]) - kLengthBytes;
        if (length > 0) std::memcpy(bytes_.data() + ends_.back(), bytes.data() + starts[at] + kLengthBytes, length);
        ends_.push_back(ends_.back() + static_cast<std::uint32_t>(length));
        longest_bytes_ = std::max(longest_bytes_, length);
        longest_characters_ = std::max(longest_characters_, characters((*this)[at]));
    }
}

}  // namespace taximeter
