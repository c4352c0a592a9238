// Merging adjacent parts of a text, the best pair first and of equally good ones the leftmost, until none is left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tokenizer/text_index.h"

namespace taximeter {

// One text being merged. Pairs wait in a heap: a text of n parts takes n log n, whatever it is made of.
// `Goodness` is what pairs are compared by; more is better.
template <typename Goodness>
class Merging {
public:
    struct Part {
        std::uint32_t at, bytes;  // in the text
        std::int32_t id;          // the token that it is, or kNone
    };
    struct Merged {
        Goodness goodness;
        std::int32_t id;  // kNone: these two do not merge
    };

    void clear() {
        links_.clear();
        waiting_.clear();
    }

    void add(std::uint32_t at, std::uint32_t bytes, std::int32_t id) {
        const auto index = static_cast<std::int32_t>(links_.size());
        if (index > 0) links_.back().next = index;
        links_.push_back({{at, bytes, id}, index - 1, kNone});
    }

    // `merged_of(left, right)` says what two parts become.
    template <typename MergedOf>
    void run(const MergedOf& merged_of) {
        const auto consider = [&](std::int32_t left) {
            if (left == kNone || links_[left].next == kNone) return false;
            const Part &first = links_[left].part, &second = links_[links_[left].next].part;
            const Merged merged = merged_of(first, second);
            if (merged.id == kNone) return false;
            waiting_.push_back({merged.goodness, left, first.bytes + second.bytes, merged.id});
            return true;
        };
        for (std::int32_t left = 0; left < static_cast<std::int32_t>(links_.size()); ++left) consider(left);
        std::make_heap(waiting_.begin(), waiting_.end(), worse);
        while (!waiting_.empty()) {
            std::pop_heap(waiting_.begin(), waiting_.end(), worse);
            const Pair pair = waiting_.back();
            waiting_.pop_back();
            Link& left = links_[pair.left];
            // A part only grows, or is taken in by the one before it: then the two are not what they were.
            if (left.part.bytes == 0 || left.next == kNone) continue;
            Link& right = links_[left.next];
            if (left.part.bytes + right.part.bytes != pair.bytes) continue;
            left.part = {left.part.at, pair.bytes, pair.id};
            right.part.bytes = 0;
            left.next = right.next;
            if (left.next != kNone) links_[left.next].before = pair.left;
            for (const std::int32_t again : {left.before, pair.left})
                if (consider(again)) std::push_heap(waiting_.begin(), waiting_.end(), worse);
        }
    }

    template <typename Take>
    void each(const Take& take) const {
        for (std::int32_t at = links_.empty() ? kNone : 0; at != kNone; at = links_[at].next) take(links_[at].part);
    }

private:
    struct Link {
        Part part;
        std::int32_t before, next;
    };
    struct Pair {
        Goodness goodness;
        std::int32_t left;
        std::uint32_t bytes;
        std::int32_t id;
    };

    static bool worse(const Pair& a, const Pair& b) noexcept {
        return a.goodness != b.goodness ? a.goodness < b.goodness : a.left > b.left;
    }

    std::vector<Link> links_;
    std::vector<Pair> waiting_;
};

}  // namespace taximeter
