#include "scheduler_proc/page_allocator.h"

#include "base/check.h"

#include <limits>

namespace pitstop::scheduler {

PageAllocator::PageAllocator(std::int64_t num_pages) {
    CHECK(num_pages >= 0 && num_pages <= std::numeric_limits<std::int32_t>::max());
    free_.reserve(static_cast<std::size_t>(num_pages));
    for (std::int64_t page = num_pages; page-- > 0;) {
        free_.push_back(static_cast<PageId>(page));  // so that page 0 is allocated first
    }
    is_free_.assign(static_cast<std::size_t>(num_pages), 1);
}

bool PageAllocator::allocate(std::span<PageId> pages) {
    if (pages.size() > free_.size()) return false;
    for (PageId& page : pages) {
        page = free_.back();
        free_.pop_back();
        is_free_[static_cast<std::size_t>(raw(page))] = 0;
    }
    return true;
}

void PageAllocator::release(std::span<const PageId> pages) {
    for (const PageId page : pages) {
        const auto at = static_cast<std::size_t>(raw(page));
        CHECK(at < is_free_.size() && is_free_[at] == 0);
        is_free_[at] = 1;
        free_.push_back(page);
    }
}

}  // namespace pitstop::scheduler
