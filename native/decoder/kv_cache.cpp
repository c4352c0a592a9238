#include "decoder/kv_cache.h"

#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace taximeter {
namespace {

// Products of sizes that came from outside must not wrap around.
std::int64_t times(std::int64_t a, std::int64_t b) {
    if (a < 0 || b < 0 || (b > 0 && a > std::numeric_limits<std::int64_t>::max() / b)) throw std::bad_alloc();
    return a * b;
}

}  // namespace

KVCache::KVCache(KVFormat format, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t block_tokens,
                 const std::vector<std::int64_t>& layers, const std::vector<std::int64_t>& blocks)
    : format_(format), kv_heads_(kv_heads), head_dim_(head_dim), block_tokens_(block_tokens) {
    if (kv_heads < 1 || head_dim < 2 || head_dim % 2 != 0) throw std::invalid_argument("a cache needs heads of an even size");
    if (block_tokens < 16 || block_tokens % 16 != 0)
        throw std::invalid_argument("a block holds a multiple of 16 tokens, not " + std::to_string(block_tokens));
    if (layers.size() != blocks.size() || layers.empty()) throw std::invalid_argument("each group of layers needs blocks");
    if (head_dim > kAttentionMaxDim) throw std::invalid_argument("heads are too large for attention");
    layer_bytes_ = times(times(times(2, kv_heads), kv_vector_bytes(format, head_dim)), block_tokens);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (layers[i] < 1 || blocks[i] < 1) throw std::invalid_argument("a group without layers or blocks");
        KVGroup group{layers[i], blocks[i], times(layer_bytes_, layers[i]), {}};
        const std::int64_t bytes = times(group.block_stride, blocks[i]);
        // Blocks are taken in order and hold all layers, so what is touched is one stretch, and attention reads it in pieces of
        // a few kilobytes: with small pages, each piece would wait for the address cache first.
        group.memory = Memory(static_cast<std::size_t>(bytes), Memory::Pages::huge);
        groups_.push_back(std::move(group));
    }
}

void* KVCache::layer(std::size_t group, std::int64_t layer) const noexcept {
    return groups_[group].memory.as() + layer * layer_bytes_;
}

const KVGroup& KVCache::group_with(std::int64_t group, std::initializer_list<std::int64_t> blocks) const {
    if (group < 0 || group >= static_cast<std::int64_t>(groups_.size())) throw std::out_of_range("there is no such group of layers");
    const KVGroup& of = groups_[static_cast<std::size_t>(group)];
    for (const std::int64_t block : blocks)
        if (block < 0 || block >= of.blocks)
            throw std::out_of_range("block " + std::to_string(block) + " of " + std::to_string(of.blocks));
    return of;
}

void KVCache::copy_block(std::int64_t group, std::int64_t source, std::int64_t target) {
    const KVGroup& of = group_with(group, {source, target});
    if (source != target)
        std::memcpy(of.memory.as() + target * of.block_stride, of.memory.as() + source * of.block_stride,
                    static_cast<std::size_t>(of.block_stride));
}

void KVCache::touch_block(std::int64_t group, std::int64_t block) {
    constexpr std::int64_t least_page = 4096;
    const KVGroup& of = group_with(group, {block});
    volatile std::uint8_t* from = of.memory.as() + block * of.block_stride;
    for (std::int64_t at = 0; at < of.block_stride; at += least_page) from[at] = from[at];
}

}  // namespace taximeter
