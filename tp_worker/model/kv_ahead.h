// Touches KV pages while the worker is idle, so that no step waits for the operating system to
// clear the memory of pages that are new. Pages go out from 0 on, and a freed one before a new one
// (scheduler_proc/page_allocator.h), so what is needed next lies right behind the last one that was
// used.
//
// Owns:   the count of what was touched.
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
    static constexpr std::int64_t kTokensAhead = 2048;  // tokens' room beyond the last page used

    // `memory`, the host's, is the pool's, and outlives this.
    KvAhead(const Arena& memory, const KvPool& pool);

    // These pages are used.
    void note_used(std::span<const PageId> pages);

    // Says whether there is something to touch. Memory that was released and taken back is new.
    [[nodiscard]] bool is_behind();
    // Touches at most some 2 MiB, which takes a millisecond or two; nothing where is_behind() is
    // false. Where the operating system has no such call (Linux before 5.14), nothing is touched.
    void touch_some();

  private:
    [[nodiscard]] std::int64_t pages_wanted() const;

    const Arena& memory_;
    std::vector<KvPool::Region> regions_;  // by block
    std::int64_t page_size_;
    std::int64_t num_pages_;
    // Touched at a time, of one block: what the largest pages allow.
    std::int64_t piece_pages_ = std::numeric_limits<std::int64_t>::max();
    std::uint64_t mapping_ = 0;       // the memory's that the counts are about
    std::int64_t pages_used_ = 0;     // one more than the last page used
    std::int64_t pages_touched_ = 0;  // of every block
    std::size_t blocks_touched_ = 0;  // these have the next piece, too
    bool is_refused_ = false;
};

}  // namespace pitstop::tp_worker
