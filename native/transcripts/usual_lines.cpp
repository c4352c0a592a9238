#include "transcripts/usual_lines.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tokenizer/texts.h"
#include "transcripts/json_cursor.h"

namespace taximeter {
namespace {

using std::int64_t;
using std::string_view;

constexpr string_view kMark = "\"usage\"";
constexpr int64_t kMostTokens = 1'000'000'000'000;

// Where the mark is first, from `from` on. Few places of a text have a quote before a `u`.
std::size_t find_mark(string_view text, std::size_t from) {
#if defined(__SSE2__)
    const __m128i first = _mm_set1_epi8(kMark[0]), second = _mm_set1_epi8(kMark[1]);
    for (; from + 17 <= text.size(); from += 16) {
        const char* const at = text.data() + from;
        const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 1));
        auto found = static_cast<unsigned>(
            _mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(here, first), _mm_cmpeq_epi8(next, second))));
        for (; found != 0; found &= found - 1) {
            const std::size_t place = from + static_cast<std::size_t>(std::countr_zero(found));
            if (text.substr(place, kMark.size()) == kMark) return place;
        }
    }
#endif
    return text.find(kMark, from);
}

// Where the line of `place` begins, which is not before `first`. It is looked for backwards: most of a text is in lines
// without the mark.
std::size_t line_begin(string_view text, std::size_t first, std::size_t place) {
    std::size_t at = place;
#if defined(__SSE2__)
    const __m128i line_end = _mm_set1_epi8('\n');
    for (; at >= first + 16; at -= 16) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + at - 16));
        const auto found = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, line_end)));
        if (found != 0) return at - 16 + static_cast<std::size_t>(std::bit_width(found));
    }
#endif
    while (at > first && text[at - 1] != '\n') --at;
    return at;
}

// A name in ASCII without escapes, as all ids are.
string_view plain(const JsonCursor::Text& text) {
    if (text.escaped) throw Unusual{};
    if (std::any_of(text.raw.begin(), text.raw.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0x80; }))
        throw Unusual{};
    return text.raw;
}

std::optional<string_view> plain_or_null(JsonCursor& cursor) {
    if (cursor.accept_null()) return std::nullopt;
    return plain(cursor.text());
}

std::optional<RawText> any_or_null(JsonCursor& cursor) {
    if (cursor.accept_null()) return std::nullopt;
    const JsonCursor::Text text = cursor.text();
    if (!text.simply_escaped || !is_utf8(text.raw)) throw Unusual{};
    return RawText{text.raw, text.escaped};
}

std::optional<int64_t> count_or_null(JsonCursor& cursor) {
    if (cursor.accept_null()) return std::nullopt;
    return cursor.count();
}

// Which of an object's members were there: one that comes twice is unusual.
class Once {
  public:
    void see(unsigned member) {
        if (seen_ & (1U << member)) throw Unusual{};
        seen_ |= 1U << member;
    }

  private:
    unsigned seen_ = 0;
};

struct Writes {
    int64_t for_5m = 0, for_1h = 0;

    bool operator==(const Writes&) const = default;
};

struct Counts {
    std::optional<int64_t> fresh, output, written, read;
    std::optional<Writes> writes;
};

std::optional<Writes> writes_or_null(JsonCursor& cursor) {
    if (cursor.accept_null()) return std::nullopt;
    Writes writes;
    Once once;
    cursor.object([&](string_view key) {
        if (key == "ephemeral_5m_input_tokens") once.see(0), writes.for_5m = cursor.count();
        else if (key == "ephemeral_1h_input_tokens") once.see(1), writes.for_1h = cursor.count();
        else cursor.skip();
    });
    return writes;
}

// Whether `key` is one of the counts of a usage object; it is read then.
bool read_count(JsonCursor& cursor, string_view key, Once& once, Counts& counts) {
    if (key == "input_tokens") once.see(0), counts.fresh = count_or_null(cursor);
    else if (key == "output_tokens") once.see(1), counts.output = count_or_null(cursor);
    else if (key == "cache_creation_input_tokens") once.see(2), counts.written = count_or_null(cursor);
    else if (key == "cache_read_input_tokens") once.see(3), counts.read = count_or_null(cursor);
    else if (key == "cache_creation") once.see(4), counts.writes = writes_or_null(cursor);
    else return false;
    return true;
}

// One number in an object; 0 where there is none.
int64_t count_in(JsonCursor& cursor, string_view name) {
    if (cursor.accept_null()) return 0;
    int64_t found = 0;
    Once once;
    cursor.object([&](string_view key) {
        if (key == name) once.see(0), found = count_or_null(cursor).value_or(0);
        else cursor.skip();
    });
    return found;
}

struct Usage {
    Counts counts;
    int64_t thought = 0;
    std::optional<Counts> only_call;
    std::optional<string_view> tier, speed, geography;
};

std::optional<Counts> only_call_or_null(JsonCursor& cursor) {
    if (cursor.accept_null()) return std::nullopt;
    std::optional<Counts> only;
    cursor.array([&] {
        if (only) throw Unusual{};
        only.emplace();
        Once once;
        bool is_message = false;
        cursor.object([&](string_view key) {
            if (read_count(cursor, key, once, *only)) return;
            if (key == "type") once.see(5), is_message = plain(cursor.text()) == "message";
            else if (key == "model") throw Unusual{};
            else cursor.skip();
        });
        if (!is_message) throw Unusual{};
    });
    return only;
}

Usage read_usage(JsonCursor& cursor) {
    Usage usage;
    Once once;
    cursor.object([&](string_view key) {
        if (read_count(cursor, key, once, usage.counts)) return;
        if (key == "service_tier") once.see(5), usage.tier = plain_or_null(cursor);
        else if (key == "speed") once.see(6), usage.speed = plain_or_null(cursor);
        else if (key == "inference_geo") once.see(7), usage.geography = plain_or_null(cursor);
        else if (key == "output_tokens_details") once.see(8), usage.thought = count_in(cursor, "thinking_tokens");
        else if (key == "server_tool_use") {
            once.see(9);
            if (count_in(cursor, "web_search_requests") != 0) throw Unusual{};
        } else if (key == "iterations") once.see(10), usage.only_call = only_call_or_null(cursor);
        else if (key == "fallback_credit") {
            if (!cursor.accept_null()) throw Unusual{};
        } else cursor.skip();
    });
    return usage;
}

// As `plain.plain_leaves`.
std::array<int64_t, kLeaves> leaves_of(const Usage& usage) {
    const Counts& counts = usage.counts;
    if (!counts.fresh || !counts.output) throw Unusual{};
    const int64_t written = counts.written.value_or(0), read = counts.read.value_or(0);
    const Writes writes = counts.writes.value_or(Writes{});
    int64_t unknown = written;
    if (counts.writes) unknown = counts.written ? written - writes.for_5m - writes.for_1h : 0;
    const int64_t total = *counts.fresh + read + written + writes.for_5m + writes.for_1h + *counts.output;
    if (unknown < 0 || usage.thought > *counts.output || total > kMostTokens) throw Unusual{};
    if (usage.only_call) {
        const Counts& call = *usage.only_call;
        if (call.fresh != counts.fresh || call.output != counts.output || call.written.value_or(0) != written ||
            call.read.value_or(0) != read || call.writes != counts.writes)
            throw Unusual{};
    }
    return {*counts.fresh, read, writes.for_5m, writes.for_1h, unknown, *counts.output - usage.thought, usage.thought};
}

// Held to the calendar, and of the days in which there were models to call.
string_view checked_stamp(string_view stamp) {
    constexpr string_view kForm = "0000-00-00T00:00:00.000Z";
    if (stamp.size() != kForm.size()) throw Unusual{};
    for (std::size_t place = 0; place < kForm.size(); ++place) {
        const bool holds = kForm[place] == '0' ? stamp[place] >= '0' && stamp[place] <= '9' : stamp[place] == kForm[place];
        if (!holds) throw Unusual{};
    }
    const auto two = [&](std::size_t place) { return 10 * (stamp[place] - '0') + (stamp[place + 1] - '0'); };
    const int year = 100 * two(0) + two(2), month = two(5), day = two(8);
    if (year < 2015 || month < 1 || month > 12 || day < 1 || two(11) > 23 || two(14) > 59 || two(17) > 59) throw Unusual{};
    const bool leaps = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (day > kDays[month - 1] + (month == 2 && leaps)) throw Unusual{};
    return stamp;
}

struct Message {
    std::optional<string_view> id, model;
    std::optional<Usage> usage;
};

Message read_message(JsonCursor& cursor) {
    Message message;
    Once once;
    cursor.object([&](string_view key) {
        if (key == "id") once.see(0), message.id = plain_or_null(cursor);
        else if (key == "model") once.see(1), message.model = plain_or_null(cursor);
        else if (key == "usage") {
            once.see(2);
            if (!cursor.accept_null()) message.usage = read_usage(cursor);
        } else cursor.skip();
    });
    return message;
}

// Whether the line tells of a call; `found` has it then. Throws Unusual.
bool read_line(string_view line, FoundLine& found) {
    JsonCursor cursor(line);
    std::optional<Message> message;
    std::optional<string_view> stamp;
    Once once;
    cursor.object([&](string_view key) {
        if (key == "message") {
            once.see(0);
            if (!cursor.accept_null()) message = read_message(cursor);
        } else if (key == "timestamp") once.see(1), stamp = plain_or_null(cursor);
        else if (key == "requestId") once.see(2), found.request_id = plain_or_null(cursor);
        else if (key == "sessionId") once.see(3), found.common.session = any_or_null(cursor);
        else if (key == "cwd") once.see(4), found.common.folder = any_or_null(cursor);
        else if (key == "gitBranch") once.see(5), found.common.branch = any_or_null(cursor);
        else if (key == "agentId") once.see(6), found.common.agent = any_or_null(cursor);
        else if (key == "isSidechain") {
            once.see(7);
            if (!cursor.accept_null()) found.common.sidechain = cursor.boolean();
        } else if (key == "uuid") once.see(8), any_or_null(cursor);
        else if (key == "costUSD") {
            once.see(9);
            if (!cursor.accept_null()) throw Unusual{};
        } else cursor.skip();
    });
    cursor.expect_end();
    if (!message) throw Unusual{};  // there may be messages within messages
    if (!message->usage) return false;
    const Usage& usage = *message->usage;
    found.leaves = leaves_of(usage);
    const string_view model = message->model.value_or(""), id = message->id.value_or("");
    if (model.empty() || model == "<synthetic>" || id.empty() || !stamp) throw Unusual{};
    found.stamp = checked_stamp(*stamp);
    found.message_id = id;
    found.common.model = model;
    found.common.tier = usage.tier;
    found.common.speed = usage.speed;
    found.common.geography = usage.geography;
    return true;
}

int64_t sum(const std::array<int64_t, kLeaves>& leaves) {
    int64_t total = 0;
    for (const int64_t count : leaves) total += count;
    return total;
}

bool are_of_one_call(const FoundLine& one, const FoundLine& other) {
    return one.usual && other.usual && one.message_id == other.message_id && one.request_id == other.request_id &&
           one.common == other.common;
}

}  // namespace

int64_t microseconds_of(string_view stamp) {
    using namespace std::chrono;
    const auto number = [&](std::size_t place, std::size_t digits) {
        int made = 0;
        for (std::size_t at = place; at < place + digits; ++at) made = 10 * made + (stamp[at] - '0');
        return made;
    };
    const sys_days day = year(number(0, 4)) / month(static_cast<unsigned>(number(5, 2))) /
                         std::chrono::day(static_cast<unsigned>(number(8, 2)));
    const auto since = day.time_since_epoch() + hours(number(11, 2)) + minutes(number(14, 2)) + seconds(number(17, 2));
    return microseconds(since + milliseconds(number(20, 3))).count();
}

std::vector<FoundLine> find_usage_lines(string_view lines) {
    std::vector<FoundLine> all;
    std::size_t first = 0;
    for (std::size_t place; (place = find_mark(lines, first)) != string_view::npos;) {
        FoundLine found;
        found.begin = line_begin(lines, first, place);
        const void* const end = std::memchr(lines.data() + place, '\n', lines.size() - place);
        found.end = end == nullptr ? lines.size() : static_cast<std::size_t>(static_cast<const char*>(end) - lines.data());
        first = std::min(found.end + 1, lines.size());
        try {
            if (!read_line(lines.substr(found.begin, found.end - found.begin), found)) continue;
            found.usual = true;
        } catch (const Unusual&) {
            found.usual = false;
        }
        if (all.empty() || !are_of_one_call(all.back(), found)) {
            all.push_back(found);
            continue;
        }
        FoundLine& known = all.back();
        known.stamp = std::min(known.stamp, found.stamp);
        if (sum(found.leaves) >= sum(known.leaves)) known.leaves = found.leaves;
    }
    return all;
}

}  // namespace taximeter
