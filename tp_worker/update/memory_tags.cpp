#include "tp_worker/update/memory_tags.h"

namespace pitstop::tp_worker {
namespace {

Result<std::int64_t> release(Engine& engine, messages::MemoryTag tag, bool keep_weights) {
    if (tag == messages::MemoryTag::kWeights) {
        WeightStore* store = engine.weights();
        if (store == nullptr || !store->is_resident()) return 0;
        return store->release(keep_weights ? WeightStore::Keep::kYes : WeightStore::Keep::kNo);
    }
    Arena* kv = engine.kv_memory();
    if (kv == nullptr || !kv->is_committed()) return 0;
    return kv->release();
}

Result<> resume(Engine& engine, messages::MemoryTag tag) {
    if (tag == messages::MemoryTag::kWeights) {
        WeightStore* store = engine.weights();
        if (store == nullptr || store->is_resident()) return Ok{};
        return store->resume();
    }
    Arena* kv = engine.kv_memory();
    if (kv == nullptr || kv->is_committed()) return Ok{};
    return kv->commit();
}

messages::TagMemory measure(const Engine& engine, messages::MemoryTag tag) {
    messages::TagMemory memory{.tag = tag};
    if (tag == messages::MemoryTag::kWeights) {
        if (const WeightStore* store = engine.weights()) {
            memory.resident_bytes = store->resident_bytes();
            memory.host_bytes = store->host_bytes();
        }
    } else if (const Arena* kv = engine.kv_memory()) {
        memory.resident_bytes = kv->resident_bytes();
    }
    return memory;
}

messages::MemoryState state_of(const Engine& engine, messages::MemoryTag tag) {
    const Arena* kv = engine.kv_memory();
    const WeightStore* store = engine.weights();
    const bool is_resident = tag == messages::MemoryTag::kWeights
                                 ? store == nullptr || store->is_resident()
                                 : kv == nullptr || kv->is_committed();
    return is_resident ? messages::MemoryState::kResident : messages::MemoryState::kReleased;
}

}  // namespace

messages::WorkerMemoryDone change_memory(Engine& engine, const messages::WorkerMemory& order) {
    messages::WorkerMemoryDone done;
    std::array<std::int64_t, messages::kAllMemoryTags.size()> freed{};
    for (const messages::MemoryTag tag : order.tags) {
        Result<> result = Ok{};
        if (order.action == messages::MemoryAction::kRelease) {
            const Result<std::int64_t> bytes = release(engine, tag, order.keep_weights);
            if (bytes) freed[static_cast<std::size_t>(tag)] = *bytes;
            if (!bytes) result = bytes.error();
        } else {
            result = resume(engine, tag);
        }
        if (result) continue;
        done.verdict = result.error();
        break;
    }
    done.call = order.call;
    done.rank = engine.rank();
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        done.tags.push_back(measure(engine, tag));
        done.tags.back().state = state_of(engine, tag);
        done.tags.back().freed_bytes = freed[static_cast<std::size_t>(tag)];
    }
    return done;
}

messages::WorkerMemoryDone measure_memory(const Engine& engine) {
    messages::WorkerMemoryDone measured;
    measured.rank = engine.rank();
    for (const messages::MemoryTag tag : messages::kAllMemoryTags)
        measured.tags.push_back(measure(engine, tag));
    return measured;
}

}  // namespace pitstop::tp_worker
