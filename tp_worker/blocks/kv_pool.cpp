#include "tp_worker/blocks/kv_pool.h"

#include "tp_worker/blocks/narrow.h"

namespace pitstop::tp_worker {

KvId KvPlan::add(const Heads& heads) {
    blocks_.push_back(heads);
    return static_cast<KvId>(blocks_.size() - 1);
}

std::int64_t KvPlan::token_bytes(Compute compute) const {
    std::int64_t elements = 0;
    for (const Heads& heads : blocks_) elements += 2 * heads.num * heads.dim;
    return elements * kernels::size_of(act_dtype(compute));
}

KvPool::KvPool(const KvPlan& plan, const ModelSizes& sizes, Compute compute)
    : page_size_(sizes.page_size), num_pages_(sizes.num_pages + sizes.num_scratch_pages) {
    for (const KvPlan::Heads& heads : plan.blocks()) {
        const kernels::KvCache cache{
            .dtype = act_dtype(compute),
            .num_pages = narrow(num_pages_),
            .page_size = narrow(page_size_),
            .num_kv_heads = narrow(heads.num),
            .head_dim = narrow(heads.dim),
        };
        regions_.push_back(
            {.offset = bytes_, .page_bytes = kernels::page_bytes(cache), .cache = cache}
        );
        bytes_ += kernels::kv_bytes(cache);
        page_bytes_ += regions_.back().page_bytes;
    }
}

kernels::KvCache KvPool::cache(KvId block) const {
    const Region& region = regions_[static_cast<std::size_t>(raw(block))];
    kernels::KvCache cache = region.cache;
    cache.data = memory_ + region.offset;
    return cache;
}

}  // namespace pitstop::tp_worker
