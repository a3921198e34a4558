// Hands out KV pages. The numbers are the same on every rank, so this runs once, in the scheduler.
//
// Owns:    the free list. A page belongs to the lease or node that has it until release().
// Thread:  the loop thread only.
// Bounded: allocates nothing after construction.
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::scheduler {

class PageAllocator {
  public:
    PageAllocator() = default;  // an allocator without pages
    // REQUIRES: 0 <= num_pages <= the largest PageId.
    explicit PageAllocator(std::int64_t num_pages);

    // Fills `pages` and returns true, or changes nothing and returns false.
    [[nodiscard]] bool allocate(std::span<PageId> pages);

    // REQUIRES: every page is allocated; each appears once.
    void release(std::span<const PageId> pages);

    [[nodiscard]] std::int64_t num_pages() const {
        return static_cast<std::int64_t>(is_free_.size());
    }
    [[nodiscard]] std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
    [[nodiscard]] bool is_free(PageId page) const {
        return is_free_[static_cast<std::size_t>(raw(page))] != 0;
    }

  private:
    std::vector<PageId> free_{};  // a stack: the page freed last, the warmest, is allocated first
    std::vector<std::uint8_t> is_free_{};  // [num_pages]
};

}  // namespace pitstop::scheduler
