#include "tokenizer/words.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace taximeter {
namespace {

using std::size_t;
using std::uint32_t;
using Class = CharacterClass;

using enum CharacterClass;

constexpr struct {
    uint32_t first;
    Class kind;
} kRuns[] = {
#include "tokenizer/unicode_classes.inc"
};

constexpr uint32_t kTabled = 0x10000;  // what lies above is looked up among the runs

Class class_in_runs(uint32_t point) noexcept {
    const auto* after = std::upper_bound(std::begin(kRuns), std::end(kRuns), point,
                                         [](uint32_t wanted, const auto& run) { return wanted < run.first; });
    return after == std::begin(kRuns) ? Class::other : std::prev(after)->kind;
}

Class class_of(uint32_t point) noexcept {
    static const auto table = [] {
        std::array<Class, kTabled> made{};
        for (size_t run = 0; run < std::size(kRuns); ++run) {
            const uint32_t end = run + 1 < std::size(kRuns) ? kRuns[run + 1].first : kTabled;
            for (uint32_t at = kRuns[run].first; at < std::min(end, kTabled); ++at) made[at] = kRuns[run].kind;
        }
        return made;
    }();
    return point < kTabled ? table[point] : class_in_runs(point);
}

struct Character {
    uint32_t at;  // its first byte
    uint32_t point;
    Class kind;
};

constexpr bool is_letter(Class kind) noexcept { return kind == Class::upper || kind == Class::lower || kind == Class::letter; }

// A part of the text, seen by a step: characters by index, and past the end nothing that matches anything.
class Part {
public:
    Part(const Character* first, size_t size) : first_(first), size_(size) {}

    size_t size() const noexcept { return size_; }
    uint32_t point(size_t at) const noexcept { return at < size_ ? first_[at].point : kNothing; }
    bool letter(size_t at) const noexcept { return at < size_ && is_letter(first_[at].kind); }
    bool number(size_t at) const noexcept { return is(at, Class::number); }
    bool space(size_t at) const noexcept { return is(at, Class::space); }
    bool mark(size_t at) const noexcept { return is(at, Class::mark); }
    bool is(size_t at, Class kind) const noexcept { return at < size_ && first_[at].kind == kind; }
    bool line_end(size_t at) const noexcept { return point(at) == '\n' || point(at) == '\r'; }
    // [^\s\p{L}\p{N}]
    bool sign(size_t at) const noexcept { return at < size_ && !letter(at) && !number(at) && !space(at); }
    // [^\r\n\p{L}\p{N}]
    bool may_lead(size_t at) const noexcept { return at < size_ && !line_end(at) && !letter(at) && !number(at); }
    // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]
    bool upper_like(size_t at) const noexcept { return is(at, Class::upper) || is(at, Class::letter) || mark(at); }
    bool lower_like(size_t at) const noexcept { return is(at, Class::lower) || is(at, Class::letter) || mark(at); }

    template <typename Matches>
    size_t run(size_t at, Matches matches) const {
        while (at < size_ && matches(at)) ++at;
        return at;
    }

private:
    static constexpr uint32_t kNothing = 0xFFFFFFFF;

    const Character* first_;
    size_t size_;
};

// Each of these gives the end of what it matches from `at` on; `at` itself where it matches nothing.

size_t contraction(const Part& part, size_t at, bool any_case) {
    if (part.point(at) != '\'') return at;
    const auto letter = [&](size_t where) -> uint32_t {
        const uint32_t point = part.point(where);
        if (any_case && point >= 'A' && point <= 'Z') return point - 'A' + 'a';
        if (any_case && point == 0x17F) return 's';  // the long s
        return point;
    };
    const uint32_t first = letter(at + 1), second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return at + 3;
    return at;
}

// ` ?X+`
template <typename Matches>
size_t spaced_run(const Part& part, size_t at, Matches matches) {
    const size_t begin = at + (part.point(at) == ' ' ? 1 : 0);
    const size_t end = part.run(begin, matches);
    return end > begin ? end : at;
}

// `\s+(?!\S)|\s+`: a run of white space, but for its last character where something follows.
size_t spaces(const Part& part, size_t at) {
    const size_t end = part.run(at, [&](size_t where) { return part.space(where); });
    return end < part.size() && end - at > 1 ? end - 1 : end;
}

// `\s*[\r\n]+`: up to the last line end of a run of white space.
size_t spaces_to_line_end(const Part& part, size_t at) {
    size_t last = at;
    for (size_t where = at; part.space(where); ++where)
        if (part.line_end(where)) last = where + 1;
    return last;
}

size_t gpt2_word(const Part& part, size_t at) {
    if (const size_t end = contraction(part, at, false); end > at) return end;
    if (const size_t end = spaced_run(part, at, [&](size_t where) { return part.letter(where); }); end > at) return end;
    if (const size_t end = spaced_run(part, at, [&](size_t where) { return part.number(where); }); end > at) return end;
    if (const size_t end = spaced_run(part, at, [&](size_t where) { return part.sign(where); }); end > at) return end;
    return spaces(part, at);
}

size_t signs_or_spaces(const Part& part, size_t at, bool with_slashes) {
    if (const size_t end = spaced_run(part, at, [&](size_t where) { return part.sign(where); }); end > at)
        return part.run(end, [&](size_t where) { return part.line_end(where) || (with_slashes && part.point(where) == '/'); });
    if (const size_t end = spaces_to_line_end(part, at); end > at) return end;
    return spaces(part, at);
}

size_t llama3_word(const Part& part, size_t at, size_t most_numbers) {
    if (const size_t end = contraction(part, at, true); end > at) return end;
    const size_t begin = at + (part.may_lead(at) ? 1 : 0);
    if (const size_t end = part.run(begin, [&](size_t where) { return part.letter(where); }); end > begin) return end;
    if (part.number(at)) {
        return part.run(at, [&](size_t where) { return part.number(where) && where - at < most_numbers; });
    }
    return signs_or_spaces(part, at, false);
}

// Capitals and then small letters, of which there must be one: `A*B+`, where some characters are both.
size_t ends_small(const Part& part, size_t begin) {
    const size_t capitals = part.run(begin, [&](size_t where) { return part.upper_like(where); });
    const size_t end = part.run(capitals, [&](size_t where) { return part.lower_like(where); });
    if (end > capitals) return end;
    for (size_t last = capitals; last > begin; --last)
        if (part.lower_like(last - 1)) return last;
    return begin;
}

// `A+B*`
size_t begins_large(const Part& part, size_t begin) {
    const size_t capitals = part.run(begin, [&](size_t where) { return part.upper_like(where); });
    return capitals > begin ? part.run(capitals, [&](size_t where) { return part.lower_like(where); }) : begin;
}

size_t tekken_word(const Part& part, size_t at) {
    for (const auto word : {ends_small, begins_large}) {
        if (part.may_lead(at))
            if (const size_t end = word(part, at + 1); end > at + 1) return end;
        if (const size_t end = word(part, at); end > at) return end;
    }
    if (part.number(at)) return at + 1;
    return signs_or_spaces(part, at, true);
}

bool is_cut_punctuation(const Part& part, size_t at) {
    constexpr std::string_view more = "$+<=>^~|";
    const uint32_t point = part.point(at);
    return part.is(at, Class::punctuation) || (point < 0x80 && more.find(static_cast<char>(point)) != std::string_view::npos);
}

bool is_ascii_digit(uint32_t point) noexcept { return point >= '0' && point <= '9'; }

size_t matched(WordStep step, const Part& part, size_t at) {
    switch (step) {
        case WordStep::gpt2: return gpt2_word(part, at);
        case WordStep::llama3: return llama3_word(part, at, 3);
        case WordStep::qwen2: return llama3_word(part, at, 1);
        case WordStep::tekken: return tekken_word(part, at);
        case WordStep::number: return at + (part.number(at) ? 1 : 0);
        case WordStep::numbers: return part.run(at, [&](size_t where) { return part.number(where); });
        case WordStep::punctuation: return part.run(at, [&](size_t where) { return is_cut_punctuation(part, where); });
        case WordStep::three_ascii_digits:
            return is_ascii_digit(part.point(at)) && is_ascii_digit(part.point(at + 1)) && is_ascii_digit(part.point(at + 2))
                       ? at + 3
                       : at;
    }
    return at;
}

// The characters of what is known to be UTF-8; a cut-off last one would end with the text.
std::vector<Character> characters(std::string_view text) {
    std::vector<Character> made;
    made.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const auto lead = static_cast<unsigned char>(text[at]);
        const size_t bytes = std::min<size_t>(lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4, text.size() - at);
        uint32_t point = bytes == 1 ? lead : lead & (0x7Fu >> bytes);
        for (size_t byte = 1; byte < bytes; ++byte) point = point << 6 | (static_cast<unsigned char>(text[at + byte]) & 0x3Fu);
        made.push_back({static_cast<uint32_t>(at), point, class_of(point)});
        at += bytes;
    }
    return made;
}

}  // namespace

std::optional<WordStep> word_step_named(std::string_view name) noexcept {
    constexpr std::pair<std::string_view, WordStep> names[] = {
        {"gpt2", WordStep::gpt2},       {"llama3", WordStep::llama3},   {"qwen2", WordStep::qwen2},
        {"tekken", WordStep::tekken},   {"number", WordStep::number},   {"numbers", WordStep::numbers},
        {"punctuation", WordStep::punctuation}, {"three ascii digits", WordStep::three_ascii_digits}};
    for (const auto& [known, step] : names)
        if (known == name) return step;
    return std::nullopt;
}

std::vector<uint32_t> word_ends(std::string_view text, std::span<const WordStep> steps) {
    const std::vector<Character> all = characters(text);
    std::vector<size_t> ends, before;  // counted in characters
    if (!all.empty()) ends.push_back(all.size());
    for (const WordStep step : steps) {
        std::swap(ends, before);
        ends.clear();
        size_t begin = 0;
        for (const size_t end : before) {
            const Part part(all.data() + begin, end - begin);
            bool is_open = false;  // whether characters that nothing matched are waiting for their end
            for (size_t at = 0; at < part.size();) {
                const size_t next = matched(step, part, at);
                if (next == at) {
                    is_open = true;
                    ++at;
                    continue;
                }
                if (is_open) ends.push_back(begin + at);
                is_open = false;
                ends.push_back(begin + next);
                at = next;
            }
            if (is_open) ends.push_back(end);
            begin = end;
        }
    }
    std::vector<uint32_t> bytes;
    bytes.reserve(ends.size());
    for (const size_t end : ends) bytes.push_back(end < all.size() ? all[end].at : static_cast<uint32_t>(text.size()));
    return bytes;
}

}  // namespace taximeter
