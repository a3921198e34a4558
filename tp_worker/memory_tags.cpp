#include "tp_worker/memory_tags.h"

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

TagMemory measure(Engine& engine, MemoryTag tag) {
    TagMemory memory{.tag = tag};
    bool is_resident = true;
    if (tag == MemoryTag::kWeights) {
        if (const WeightStore* store = engine.weights()) {
            is_resident = store->is_resident();
            memory.resident_bytes = store->resident_bytes();
            memory.host_bytes = store->host_bytes();
        }
    } else if (const Arena* kv = engine.kv_memory()) {
        is_resident = kv->is_committed();
        memory.resident_bytes = kv->resident_bytes();
    }
    memory.state = is_resident ? MemoryState::kResident : MemoryState::kReleased;
    return memory;
}

}  // namespace

WorkerMemoryDone change_memory(Engine& engine, const WorkerMemory& order) {
    WorkerMemoryDone done;
    done.call = order.call;
    done.rank = engine.rank();
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
    for (const MemoryTag tag : kAllMemoryTags) {
        done.tags.push_back(measure(engine, tag));
        done.tags.back().freed_bytes = freed[static_cast<std::size_t>(tag)];
    }
    return done;
}

}  // namespace pitstop
