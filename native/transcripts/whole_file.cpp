#include "transcripts/whole_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace taximeter {
namespace {

using std::int64_t;
using std::size_t;
using std::string_view;

constexpr size_t kPieceBytes = 1 << 14;

template <typename Text>
std::optional<Text> kept(TextStore& texts, const std::optional<Text>& text);

template <>
std::optional<string_view> kept(TextStore& texts, const std::optional<string_view>& text) {
    if (!text) return std::nullopt;
    return texts.kept(*text);
}

template <>
std::optional<RawText> kept(TextStore& texts, const std::optional<RawText>& text) {
    if (!text) return std::nullopt;
    return RawText{texts.kept(text->raw), text->escaped};
}

CommonFields kept(TextStore& texts, const CommonFields& common) {
    CommonFields own = common;
    own.session = kept(texts, common.session);
    own.folder = kept(texts, common.folder);
    own.branch = kept(texts, common.branch);
    own.agent = kept(texts, common.agent);
    own.model = texts.kept(common.model);
    own.tier = kept(texts, common.tier);
    own.speed = kept(texts, common.speed);
    own.geography = kept(texts, common.geography);
    return own;
}

int64_t sum(const std::array<int64_t, kLeaves>& leaves) {
    int64_t total = 0;
    for (const int64_t count : leaves) total += count;
    return total;
}

// One more line of the file. False where it is none that is plain.
bool add(FoundFile& file, const FoundLine& line, int64_t block_begin) {
    if (!line.usual) return false;
    const bool same_common = !file.runs.empty() && file.runs.back().common == line.common;
    if (same_common) {
        FoundCall& known = file.calls.back();
        if (known.message_id == line.message_id && known.request_id == line.request_id) {
            if (line.stamp < known.stamp) known.stamp = file.texts.kept(line.stamp);
            if (sum(line.leaves) >= sum(known.leaves)) known.leaves = line.leaves;
            return true;
        }
    } else {
        file.runs.push_back({kept(file.texts, line.common), file.calls.size()});
    }
    file.calls.push_back({file.texts.kept(line.stamp), file.texts.kept(line.message_id), kept(file.texts, line.request_id),
                          line.leaves, {}});
    file.runs.back().end = file.calls.size();
    file.last_begin = block_begin + static_cast<int64_t>(line.begin);
    return true;
}

bool has_each_message_once(const FoundFile& file) {
    std::unordered_set<string_view> seen;
    seen.reserve(file.calls.size());
    return std::all_of(file.calls.begin(), file.calls.end(),
                       [&](const FoundCall& call) { return seen.insert(call.message_id).second; });
}

bool is_blank(string_view text) {
    return text.find_first_not_of(" \t\n\r\v\f") == string_view::npos;
}

// An open file, or -1.
class Descriptor {
  public:
    explicit Descriptor(const char* path) : number_(::open(path, O_RDONLY | O_CLOEXEC)) {}
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    operator int() const { return number_; }

  private:
    int number_;
};

// How many bytes came; fewer than were asked for where the file ends, and -1 where it cannot be read.
int64_t read_at(int descriptor, char* into, size_t count, int64_t at) {
    for (;;) {
        const ssize_t came = ::pread(descriptor, into, count, static_cast<off_t>(at));
        if (came >= 0 || errno != EINTR) return static_cast<int64_t>(came);
    }
}

// False where the file ends before, or cannot be read.
bool read_whole(int descriptor, int64_t at, int64_t count, std::string& into) {
    into.resize(static_cast<size_t>(count));
    return read_at(descriptor, into.data(), into.size(), at) == count;
}

}  // namespace

string_view TextStore::kept(string_view text) {
    if (text.empty()) return {};
    if (text.size() > left_) {
        const size_t size = std::max(kPieceBytes, text.size());
        pieces_.push_back(std::make_unique_for_overwrite<char[]>(size));
        at_ = pieces_.back().get();
        left_ = size;
    }
    std::memcpy(at_, text.data(), text.size());
    const string_view own(at_, text.size());
    at_ += text.size();
    left_ -= text.size();
    return own;
}

FoundFile find_usage_calls(const CallNames& names, const char* path, int64_t offset, const ReadingSizes& sizes,
                           std::vector<char>& room) {
    FoundFile file;
    const Descriptor descriptor(path);
    struct stat status;
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return file;
    file.device = static_cast<int64_t>(status.st_dev);
    file.inode = static_cast<int64_t>(status.st_ino);
    file.size = static_cast<int64_t>(status.st_size);
    file.modified_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
    file.begin = file.end = offset;
    file.last_begin = -1;
    size_t held = 0;  // bytes of a line that goes on, at the room's beginning
    while (file.end + static_cast<int64_t>(held) < file.size) {
        if (room.size() - held < sizes.block) room.resize(held + std::max(sizes.block, held));
        const int64_t begin = file.end, at = begin + static_cast<int64_t>(held);
        const auto wanted = std::min(static_cast<int64_t>(sizes.block), file.size - at);
        const int64_t count = read_at(descriptor, room.data() + held, static_cast<size_t>(wanted), at);
        if (count < 0) return file;
        if (count == 0) break;
        file.read_bytes += count;
        const string_view came(room.data() + held, static_cast<size_t>(count));
        const size_t last = came.rfind('\n');
        const size_t whole = last == string_view::npos ? 0 : held + last + 1;
        held += static_cast<size_t>(count);
        if (whole == 0) {
            if (held > sizes.most_line) return file;
            continue;
        }
        for (const FoundLine& line : find_usage_lines({room.data(), whole}))
            if (!add(file, line, begin)) return file;
        held -= whole;
        std::memmove(room.data(), room.data() + whole, held);
        file.end = begin + static_cast<int64_t>(whole);
    }
    if (file.last_begin < 0) file.last_begin = file.end;
    if (!is_blank({room.data(), held}) || !has_each_message_once(file)) return file;
    const int64_t before_last = std::min(static_cast<int64_t>(sizes.before_last), file.last_begin);
    file.is_plain = read_whole(descriptor, 0, std::min(static_cast<int64_t>(sizes.began), file.size), file.began) &&
                    read_whole(descriptor, file.last_begin - before_last, before_last, file.before_last);
    for (FoundCall& call : file.calls) call.digest = names.of_message(call.message_id, call.request_id);
    return file;
}

}  // namespace taximeter
