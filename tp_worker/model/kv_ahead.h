// Touches KV pages while the worker is idle, so that no step waits for the operating system to
// clear new pages. Pages are allocated from 0 up, and a freed page before a new one
// (scheduler_proc/page_allocator.h). So the next new pages are right after the last used page.
//
// Owns:   the count of touched pages.
// Thread: the worker's own.
#pragma once

#include "base/ids.h"
#include "tp_worker/blocks/kv_pool.h"
#include "tp_worker/device/arena.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class KvAhead {
  public:
    static constexpr std::int64_t kTokensAhead = 2048;  // in tokens, beyond the last used page

    // `memory` is the pool's, in the host, and outlives this object.
    KvAhead(const Arena& memory, const KvPool& pool);

    // Records that these pages are used.
    void note_used(std::span<const PageId> pages);

    // Returns whether some pages are untouched, as all are after a release and a commit.
    [[nodiscard]] bool is_behind();
    // Touches at most about 2 MiB, which takes a millisecond or two; does nothing if is_behind() is
    // false. If the operating system has no such call (Linux before 5.14), nothing is touched.
    void touch_some();

  private:
    [[nodiscard]] std::int64_t pages_wanted() const;

    const Arena& memory_;
    std::vector<KvPool::Region> regions_;  // by block
    std::int64_t page_size_;
    std::int64_t num_pages_;
    // Pages touched at a time, in one block: as few as the largest pages require.
    std::int64_t piece_pages_ = std::numeric_limits<std::int64_t>::max();
    std::uint64_t mapping_ = 0;       // of the memory that the counts refer to
    std::int64_t pages_used_ = 0;     // one more than the last page used
    std::int64_t pages_touched_ = 0;  // of every block
    std::size_t blocks_touched_ = 0;  // the blocks whose next piece is touched already
    bool is_refused_ = false;
};

}  // namespace pitstop::tp_worker
