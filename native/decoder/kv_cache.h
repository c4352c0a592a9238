// The memory of keys and values, in blocks of tokens. A block holds all layers of its group side by side, so that it can be
// moved, or given back, as one piece.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/paged_attention/paged_attention.h"
#include "memory.h"

namespace taximeter {

// Layers that see everything and layers that see a window keep their tokens for different lengths of time, so each kind has
// blocks, and block tables, of its own. A model of one kind has one group.
struct KVGroup {
    std::int64_t layers, blocks;
    std::int64_t block_stride;  // bytes
    Memory memory;
};

class KVCache {
public:
    // Throws std::bad_alloc, and std::invalid_argument for sizes that no cache can have.
    KVCache(KVFormat format, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t block_tokens,
            const std::vector<std::int64_t>& layers, const std::vector<std::int64_t>& blocks);
    KVCache(const KVCache&) = delete;
    KVCache& operator=(const KVCache&) = delete;

    KVFormat format() const noexcept { return format_; }
    std::int64_t kv_heads() const noexcept { return kv_heads_; }
    std::int64_t head_dim() const noexcept { return head_dim_; }
    std::int64_t block_tokens() const noexcept { return block_tokens_; }
    const std::vector<KVGroup>& groups() const noexcept { return groups_; }

    // The part of block 0 that belongs to a group's layer.
    void* layer(std::size_t group, std::int64_t layer) const noexcept;

    // All that a block of a group holds. Throws std::out_of_range for what is not there.
    void copy_block(std::int64_t group, std::int64_t source, std::int64_t target);

    // Takes the memory of a block from the system before it is needed; what it holds stays. Throws std::out_of_range.
    void touch_block(std::int64_t group, std::int64_t block);

private:
    const KVGroup& group_with(std::int64_t group, std::initializer_list<std::int64_t> blocks) const;

    KVFormat format_;
    std::int64_t kv_heads_, head_dim_, block_tokens_, layer_bytes_;
    std::vector<KVGroup> groups_;
};

}  // namespace taximeter
