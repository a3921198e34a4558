// The pages in which blocks keep requests' keys and values between steps. Each block declares the
// heads that it keeps; the declarations determine the bytes of a page, the pool, and each block's
// part of the pool:
//   pool = [blocks][num_pages][K and V][num_kv_heads][P][D]
//
// Page numbers are the scheduler's, and the same in every block.
#pragma once

#include "kernels/kv_cache.h"
#include "tp_worker/blocks/model_sizes.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// A block's number among the blocks that keep pages.
enum class KvId : std::int32_t {};

// The declarations of a rank's blocks.
class KvPlan {
  public:
    struct Heads {
        std::int64_t num = 0;  // heads of this rank
        std::int64_t dim = 0;
    };
    KvId add(const Heads& heads);
    [[nodiscard]] std::span<const Heads> blocks() const { return blocks_; }
    [[nodiscard]] std::int64_t token_bytes(Compute compute) const;  // of all blocks

  private:
    std::vector<Heads> blocks_{};
};

class KvPool {
  public:
    KvPool(const KvPlan& plan, const ModelSizes& sizes, Compute compute);

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // bytes of one page of all blocks
    [[nodiscard]] std::int64_t page_bytes() const { return page_bytes_; }
    [[nodiscard]] std::int64_t page_size() const { return page_size_; }  // P, tokens
    // including the pages for padding
    [[nodiscard]] std::int64_t num_pages() const { return num_pages_; }

    // Sets the pool's memory, which has bytes() bytes.
    void place(std::byte* memory) { memory_ = memory; }
    [[nodiscard]] kernels::KvCache cache(KvId block) const;

    // A block's pages are contiguous.
    struct Region {
        std::int64_t offset = 0;      // bytes from the pool's start
        std::int64_t page_bytes = 0;  // bytes of a page of this block
        kernels::KvCache cache{};
    };
    [[nodiscard]] std::span<const Region> regions() const { return regions_; }

  private:
    std::vector<Region> regions_{};
    std::int64_t bytes_ = 0;
    std::int64_t page_bytes_ = 0;
    std::int64_t page_size_ = 0;
    std::int64_t num_pages_ = 0;
    std::byte* memory_ = nullptr;
};

}  // namespace pitstop::tp_worker
