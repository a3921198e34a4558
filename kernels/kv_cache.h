// One layer's KV memory on one rank: pages of P tokens,
//   [num_pages][K and V][num_kv_heads][P][D]
// A (page, K or V, head) is P * D contiguous elements, so that a head's keys stream. A page is one
// range of page_bytes(), so that it can be copied or poisoned whole.
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

struct KvCache {
    void* data = nullptr;
    DType dtype = DType::kBF16;  // kF32 (truth mode) or kBF16
    std::int32_t num_pages = 0;
    std::int32_t page_size = 0;     // P, tokens per page: any value >= 1
    std::int32_t num_kv_heads = 0;  // K, of this rank
    std::int32_t head_dim = 0;      // D, even
};

[[nodiscard]] inline std::int64_t page_elements(const KvCache& kv) {
    return std::int64_t{2} * kv.num_kv_heads * kv.page_size * kv.head_dim;
}
[[nodiscard]] inline std::int64_t page_bytes(const KvCache& kv) {
    return page_elements(kv) * size_of(kv.dtype);
}
[[nodiscard]] inline std::int64_t kv_bytes(const KvCache& kv) {
    return page_bytes(kv) * kv.num_pages;
}

// Returns the number of elements from `data` to [page][0][head][0][0]; the values are
// value_offset() later.
[[nodiscard]] inline std::int64_t key_offset(const KvCache& kv, PageId page, std::int32_t head) {
    return raw(page) * page_elements(kv) + std::int64_t{head} * kv.page_size * kv.head_dim;
}
[[nodiscard]] inline std::int64_t value_offset(const KvCache& kv) {
    return std::int64_t{kv.num_kv_heads} * kv.page_size * kv.head_dim;
}

}  // namespace pitstop::kernels
