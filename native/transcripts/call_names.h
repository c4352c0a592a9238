// What a call's ids end with, in whatever file it stands: as `importers/alike.py` has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace taximeter {

// 88 bits in hexadecimal digits.
using CallDigest = std::array<char, 22>;

// Names calls of one source by a BLAKE2b (RFC 7693) of the source and of what the call's own log names it by.
class CallNames {
  public:
    explicit CallNames(std::string_view source);

    // Of the call that an answer's message is of. The provider's own messages have names that are nobody else's; those of
    // gateways may be used again, and the request's name stands beside them.
    CallDigest of_message(std::string_view message_id, std::optional<std::string_view> request_id) const;

  private:
    static constexpr std::size_t kBlock = 128;

    // Of bytes that come one after the other.
    struct State {
        std::array<std::uint64_t, 8> chain;
        std::array<std::uint8_t, kBlock> block{};
        std::size_t in_block = 0;
        std::uint64_t before = 0;  // bytes that are in the chain

        void add(std::string_view bytes);
        void compress(bool is_last);
        CallDigest finish();
    };

    State begun_;
};

}  // namespace taximeter
