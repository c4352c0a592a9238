// Going through one line of JSON without keeping it.
//
// Everything is held to the grammar, what is passed over too, and to no more depth than logs have. What does not hold,
// or would need more than a look, ends in `Unusual`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>

#include <bit>
#endif

namespace taximeter {

struct Unusual {};

class JsonCursor {
  public:
    struct Text {
        std::string_view raw;
        bool escaped = false;        // there is a backslash in it
        bool simply_escaped = true;  // and only before " \ and /
    };

    explicit JsonCursor(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

    char peek() {
        skip_space();
        if (at_ == end_) throw Unusual{};
        return *at_;
    }

    void expect(char wanted) {
        if (peek() != wanted) throw Unusual{};
        ++at_;
    }

    bool accept(char wanted) {
        if (peek() != wanted) return false;
        ++at_;
        return true;
    }

    void expect_end() {
        skip_space();
        if (at_ != end_) throw Unusual{};
    }

    bool accept_null() {
        if (peek() != 'n') return false;
        word("null");
        return true;
    }

    bool boolean() {
        const bool is_true = peek() == 't';
        word(is_true ? "true" : "false");
        return is_true;
    }

    // A count of at most twelve digits.
    std::int64_t count() {
        peek();
        const char* const first = at_;
        std::int64_t value = 0;
        while (at_ != end_ && is_digit(*at_)) value = 10 * value + (*at_++ - '0');
        const std::ptrdiff_t digits = at_ - first;
        if (digits == 0 || digits > 12 || (digits > 1 && *first == '0') || at_ == end_) throw Unusual{};
        if (*at_ == '.' || *at_ == 'e' || *at_ == 'E') throw Unusual{};
        return value;
    }

    Text text() {
        expect('"');
        const char* const first = at_;
        Text found;
        for (;;) {
            skip_plain();
            if (at_ == end_) throw Unusual{};
            if (*at_ == '"') break;
            if (*at_ != '\\') throw Unusual{};  // a control character
            found.escaped = true;
            found.simply_escaped &= escape();
        }
        found.raw = {first, static_cast<std::size_t>(at_ - first)};
        ++at_;
        return found;
    }

    // Calls `member` with each key, and with the cursor at its value, which `member` reads or skips.
    template <typename Member>
    void object(Member&& member) {
        expect('{');
        if (accept('}')) return;
        do {
            const Text key = text();
            if (key.escaped) throw Unusual{};
            expect(':');
            member(key.raw);
        } while (accept(','));
        expect('}');
    }

    // Calls `element` with the cursor at each value.
    template <typename Element>
    void array(Element&& element) {
        expect('[');
        if (accept(']')) return;
        do element();
        while (accept(','));
        expect(']');
    }

    void skip(int depth = 0) {
        if (depth > kMostDepth) throw Unusual{};
        switch (peek()) {
            case '"': text(); break;
            case '{': skip_object(depth); break;
            case '[': array([&] { skip(depth + 1); }); break;
            case 't': word("true"); break;
            case 'f': word("false"); break;
            case 'n': word("null"); break;
            default: skip_number();
        }
    }

  private:
    static constexpr int kMostDepth = 64;

    static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

    void skip_space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
    }

    void word(std::string_view wanted) {
        if (static_cast<std::size_t>(end_ - at_) < wanted.size() || std::string_view(at_, wanted.size()) != wanted)
            throw Unusual{};
        at_ += wanted.size();
    }

    void skip_object(int depth) {
        expect('{');
        if (accept('}')) return;
        do {
            text();
            expect(':');
            skip(depth + 1);
        } while (accept(','));
        expect('}');
    }

    void skip_digits() {
        if (at_ == end_ || !is_digit(*at_)) throw Unusual{};
        while (at_ != end_ && is_digit(*at_)) ++at_;
    }

    void skip_number() {
        if (*at_ == '-') ++at_;
        const char* const first = at_;
        skip_digits();
        if (*first == '0' && at_ - first > 1) throw Unusual{};
        if (at_ != end_ && *at_ == '.') {
            ++at_;
            skip_digits();
        }
        if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
            ++at_;
            if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
            skip_digits();
        }
    }

    // Past what is neither a quote, a backslash nor a control character.
    void skip_plain() {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1F);
        while (end_ - at_ >= 16) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_));
            const __m128i special = _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)),
                _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
            const auto found = static_cast<unsigned>(_mm_movemask_epi8(special));
            if (found != 0) {
                at_ += std::countr_zero(found);
                return;
            }
            at_ += 16;
        }
#endif
        while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
    }

    unsigned hex4() {
        if (end_ - at_ < 4) throw Unusual{};
        unsigned value = 0;
        for (int place = 0; place < 4; ++place) {
            const char byte = *at_++;
            const char small = static_cast<char>(byte | 0x20);
            if (is_digit(byte)) value = 16 * value + static_cast<unsigned>(byte - '0');
            else if (small >= 'a' && small <= 'f') value = 16 * value + static_cast<unsigned>(small - 'a' + 10);
            else throw Unusual{};
        }
        return value;
    }

    // Whether it is one of a character that stands for itself. Halves of pairs belong together.
    bool escape() {
        ++at_;
        if (at_ == end_) throw Unusual{};
        switch (*at_++) {
            case '"': case '\\': case '/': return true;
            case 'b': case 'f': case 'n': case 'r': case 't': return false;
            case 'u': break;
            default: throw Unusual{};
        }
        const unsigned first = hex4();
        if (first < 0xD800 || first > 0xDFFF) return false;
        if (first > 0xDBFF || end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') throw Unusual{};
        at_ += 2;
        const unsigned second = hex4();
        if (second < 0xDC00 || second > 0xDFFF) throw Unusual{};
        return false;
    }

    const char* at_;
    const char* end_;
};

}  // namespace taximeter
