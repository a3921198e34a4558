#include "tp_worker/update/memory_tags.h"

#include <algorithm>

namespace pitstop {
namespace {

Result<std::int64_t> release(Engine& engine, MemoryTag tag, bool keep_weights) {
    if (tag == MemoryTag::kWeights) {
        WeightStore* store = engine.weights();
        if (store == nullptr || !store->is_resident()) return 0;
        return store->release(keep_weights ? WeightStore::Keep::kYes : WeightStore::Keep::kNo);
    }
    Arena* kv = engine.kv_memory();
    if (kv == nullptr || !kv->is_committed()) return 0;
    return kv->release();
}

Result<> resume(Engine& engine, MemoryTag tag) {
    if (tag == MemoryTag::kWeights) {
        WeightStore* store = engine.weights();
        if (store == nullptr || store->is_resident()) return Ok{};
        return store->resume();
    }
    Arena* kv = engine.kv_memory();
    if (kv == nullptr || kv->is_committed()) return Ok{};
    return kv->commit();
}

TagMemory measure(const Engine& engine, MemoryTag tag) {
    TagMemory memory{.tag = tag};
    if (tag == MemoryTag::kWeights) {
        if (const WeightStore* store = engine.weights()) {
            memory.resident_bytes = store->resident_bytes();
            memory.host_bytes = store->host_bytes();
        }
    } else if (const Arena* kv = engine.kv_memory()) {
        memory.resident_bytes = kv->resident_bytes();
    }
    return memory;
}

MemoryState state_of(const Engine& engine, MemoryTag tag) {
    const Arena* kv = engine.kv_memory();
    const WeightStore* store = engine.weights();
    const bool is_resident = tag == MemoryTag::kWeights ? store == nullptr || store->is_resident()
                                                        : kv == nullptr || kv->is_committed();
    return is_resident ? MemoryState::kResident : MemoryState::kReleased;
}

}  // namespace

WorkerMemoryDone change_memory(Engine& engine, const WorkerMemory& order) {
    WorkerMemoryDone done;
    std::array<std::int64_t, kAllMemoryTags.size()> freed{};
    for (const MemoryTag tag : order.tags) {
        Result<> result = Ok{};
        if (order.action == MemoryAction::kRelease) {
            const Result<std::int64_t> bytes = release(engine, tag, order.keep_weights);
            if (bytes) freed[static_cast<std::size_t>(tag)] = *bytes;
            if (!bytes) result = bytes.error();
        } else {
            result = resume(engine, tag);
        }
        if (result) continue;
        done.code = name_of(result.error().code);
        done.message = result.error().message;
        break;
    }
    done.call = order.call;
    done.rank = engine.rank();
    for (const MemoryTag tag : kAllMemoryTags) {
        done.tags.push_back(measure(engine, tag));
        done.tags.back().state = state_of(engine, tag);
        done.tags.back().freed_bytes = freed[static_cast<std::size_t>(tag)];
    }
    return done;
}

WorkerMemoryDone measure_memory(const Engine& engine) {
    WorkerMemoryDone measured;
    measured.rank = engine.rank();
    for (const MemoryTag tag : kAllMemoryTags) measured.tags.push_back(measure(engine, tag));
    return measured;
}

}  // namespace pitstop
