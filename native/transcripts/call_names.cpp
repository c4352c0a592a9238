#include "transcripts/call_names.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace taximeter {
namespace {

using std::size_t;
using std::string_view;
using std::uint64_t;
using std::uint8_t;

constexpr std::array<uint64_t, 8> kBegin = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

// Which word of the block each step takes, in ten rounds; two more begin again.
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

uint64_t word_at(const uint8_t* bytes) {
    uint64_t word = 0;
    for (size_t place = 0; place < 8; ++place) word |= static_cast<uint64_t>(bytes[place]) << (8 * place);
    return word;
}

void mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t one, uint64_t other) {
    a += b + one;
    d = std::rotr(d ^ a, 32);
    c += d;
    b = std::rotr(b ^ c, 24);
    a += b + other;
    d = std::rotr(d ^ a, 16);
    c += d;
    b = std::rotr(b ^ c, 63);
}

bool is_lower(char letter) { return letter >= 'a' && letter <= 'z'; }

bool is_letter_or_digit(char letter) {
    return is_lower(letter) || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
}

// Whether it is as the provider's own messages are called: msg_, perhaps a word in small letters with another _, and
// twenty letters and digits or more.
bool is_own_name(string_view id) {
    constexpr string_view kBefore = "msg_";
    if (!id.starts_with(kBefore)) return false;
    id.remove_prefix(kBefore.size());
    const size_t word = id.find('_');
    if (word != string_view::npos) {
        if (word == 0 || !std::all_of(id.begin(), id.begin() + static_cast<std::ptrdiff_t>(word), is_lower)) return false;
        id.remove_prefix(word + 1);
    }
    return id.size() >= 20 && std::all_of(id.begin(), id.end(), is_letter_or_digit);
}

}  // namespace

CallNames::CallNames(string_view source) {
    constexpr uint64_t kDigestBytes = std::tuple_size_v<CallDigest> / 2;
    begun_.chain = kBegin;
    begun_.chain[0] ^= 0x01010000 ^ kDigestBytes;  // without a key, a tree of one leaf
    begun_.add(source);
    begun_.add(string_view("\0", 1));
}

CallDigest CallNames::of_message(string_view message_id, std::optional<string_view> request_id) const {
    State state = begun_;
    state.add(message_id);
    if (request_id && !request_id->empty() && !is_own_name(message_id)) {
        state.add(" ");
        state.add(*request_id);
    }
    return state.finish();
}

void CallNames::State::add(string_view bytes) {
    while (!bytes.empty()) {
        if (in_block == kBlock) compress(false);  // the last block, also a full one, is `finish`'s
        const size_t taken = std::min(kBlock - in_block, bytes.size());
        std::memcpy(block.data() + in_block, bytes.data(), taken);
        in_block += taken;
        bytes.remove_prefix(taken);
    }
}

void CallNames::State::compress(bool is_last) {
    std::array<uint64_t, 16> words;
    for (size_t place = 0; place < words.size(); ++place) words[place] = word_at(block.data() + 8 * place);
    before += in_block;
    in_block = 0;
    std::array<uint64_t, 16> v;
    std::copy(chain.begin(), chain.end(), v.begin());
    std::copy(kBegin.begin(), kBegin.end(), v.begin() + 8);
    v[12] ^= before;
    if (is_last) v[14] = ~v[14];
    for (size_t round = 0; round < 12; ++round) {
        const auto& order = kOrder[round % 10];
        for (size_t column = 0; column < 4; ++column)
            mix(v[column], v[4 + column], v[8 + column], v[12 + column], words[order[2 * column]],
                words[order[2 * column + 1]]);
        for (size_t column = 0; column < 4; ++column)
            mix(v[column], v[4 + (column + 1) % 4], v[8 + (column + 2) % 4], v[12 + (column + 3) % 4],
                words[order[8 + 2 * column]], words[order[9 + 2 * column]]);
    }
    for (size_t place = 0; place < chain.size(); ++place) chain[place] ^= v[place] ^ v[8 + place];
}

CallDigest CallNames::State::finish() {
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(in_block), block.end(), uint8_t{0});
    compress(true);
    constexpr char kDigits[] = "0123456789abcdef";
    CallDigest made;
    for (size_t place = 0; place < made.size() / 2; ++place) {
        const auto byte = static_cast<uint8_t>(chain[place / 8] >> (8 * (place % 8)));
        made[2 * place] = kDigits[byte >> 4];
        made[2 * place + 1] = kDigits[byte & 15];
    }
    return made;
}

}  // namespace taximeter
