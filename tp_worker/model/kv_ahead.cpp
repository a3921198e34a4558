#include "tp_worker/model/kv_ahead.h"

#include "base/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{2} << 20;  // a huge page

}  // namespace

KvAhead::KvAhead(const Arena& memory, const KvPool& pool)
    : memory_(memory),
      regions_(pool.regions().begin(), pool.regions().end()),
      page_size_(pool.page_size()),
      num_pages_(regions_.empty() ? 0 : pool.num_pages()) {
    for (const KvPool::Region& region : regions_)
        piece_pages_ = std::min(piece_pages_, kPieceBytes / region.page_bytes);
    piece_pages_ = std::max<std::int64_t>(1, piece_pages_);
}

void KvAhead::note_used(std::span<const PageId> pages) {
    for (const PageId page : pages)
        pages_used_ = std::max(pages_used_, std::int64_t{raw(page)} + 1);
}

std::int64_t KvAhead::pages_wanted() const {
    return std::min(num_pages_, pages_used_ + (kTokensAhead + page_size_ - 1) / page_size_);
}

bool KvAhead::is_behind() {
    if (is_refused_ || !memory_.is_committed()) return false;
    if (mapping_ != memory_.mapping()) {
        mapping_ = memory_.mapping();
        pages_used_ = pages_touched_ = 0;
        blocks_touched_ = 0;
    }
    return pages_touched_ < pages_wanted();
}

void KvAhead::touch_some() {
    if (!is_behind()) return;
    const std::int64_t piece = std::min(piece_pages_, num_pages_ - pages_touched_);
    const KvPool::Region& region = regions_[blocks_touched_];
    const std::int64_t page_bytes = region.page_bytes;
    const std::int64_t begin = region.offset + pages_touched_ * page_bytes;
    const std::int64_t system_page = ::sysconf(_SC_PAGESIZE);
    const std::int64_t aligned = begin / system_page * system_page;
    const std::int64_t size = begin + piece * page_bytes - aligned;
    if (::madvise(memory_.data() + aligned, static_cast<std::size_t>(size), MADV_POPULATE_WRITE) !=
        0) {
        spdlog::debug("KV memory is not touched before its first use: {}", std::strerror(errno));
        is_refused_ = true;  // each step then touches its own pages
        return;
    }
    if (++blocks_touched_ == regions_.size()) {
        blocks_touched_ = 0;
        pages_touched_ += piece;
    }
}

}  // namespace pitstop::tp_worker
