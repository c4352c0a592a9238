#include "paged_attention.h"

#include <math.h>
#include <string.h>

#include "simd/portable.inc"
#include "state.h"
#include "view.h"

namespace {

constexpr int kLinesTogether = 3, kGroupsTogether = 1, kVectorsTogether = 2;

inline Vec low_halves(Vec raw) {
    Ints bits;
    memcpy(&bits, &raw, sizeof bits);
    bits <<= 16;
    memcpy(&raw, &bits, sizeof raw);
    return raw;
}
inline Vec high_halves(Vec raw) {
    Ints bits;
    memcpy(&bits, &raw, sizeof bits);
    bits &= static_cast<int32_t>(0xffff0000);
    memcpy(&raw, &bits, sizeof raw);
    return raw;
}

// Bytes as bf16, which holds them exactly.
inline void widen_bytes(const char* bytes, int64_t count, uint16_t* out) {
    for (int64_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(static_cast<signed char>(bytes[i]));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        out[i] = static_cast<uint16_t>(bits >> 16);
    }
}

#include "products.inc"
#include "body.inc"

}  // namespace

void paged_attention_portable(const PagedAttention* job, int64_t row_begin, int64_t row_end, int64_t kv_head,
                              int64_t span_begin, int64_t span_end, float* partial, void* scratch) noexcept {
    const auto body = job->format == kKVF32 ? attention_body<InVectors<CacheF32>> : attention_body<InVectors<CacheBF16>>;
    body(job, row_begin, row_end, kv_head, span_begin, span_end, partial, scratch);
}

void kv_put_portable(const PagedAttention* job, int64_t slot, int64_t kv_head, const float* k, const float* v) noexcept {
    put_body(job, slot, kv_head, k, v);
}
