// The model worker's part in updates and in releases of memory.
#include "tests/sim/model_worker.h"
#include "tests/sim/pusher.h"
#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::sim {
namespace {

// The number of tensors in the model. A bucket has one.
constexpr std::int64_t kTensors = 2;

}  // namespace

ModelWorker::Task ModelWorker::begin_stage(const messages::WorkerStage& order, StageFate fate) {
    const bool is_session = order.spec.source.kind == messages::SourceKind::kBuckets;
    Task task{.update = order.update};
    if (is_session) task.bucket = 0;
    if (stage_)
        fail(fmt::format(
            "update {} is staged over update {}",
            static_cast<std::uint64_t>(order.update),
            static_cast<std::uint64_t>(stage_->update)
        ));
    if (!order.spec.adapter.empty()) {  // an adapter is staged in memory of its own
        begin_adapter(order, fate, task);
        return task;
    }
    if (released_.contains(messages::MemoryTag::kWeights)) fail("a stage into released memory");
    const bool needs_copy = order.spec.mode == messages::UpdateMode::kStaged && !are_weights_gone_;
    if (shape_.lends && needs_copy && !released_.contains(messages::MemoryTag::kKvCache))
        fail("a second copy of the weights beside KV, where only one of them has room");
    retained_.reset();  // its copy is being overwritten
    const bool is_part =
        order.spec.source.kind == messages::SourceKind::kIpc;  // one call, without a session
    if (is_part && are_of_adapter(name_of_bytes(order.spec.source))) fate = StageFate::kBroken;
    stage_ = Stage{order.update, order.spec.mode, fate, weights_of(order.spec.label), task};
    if (is_session || is_part) stage_->weights = order.spec.partial ? live_ : WeightsId{};
    if (is_session && !order.spec.partial) stage_->num_missing = kTensors;
    stage_->is_whole = !order.spec.partial;
    stage_->stands_alone = is_part;
    if (is_part) add_bytes(name_of_bytes(order.spec.source));
    if (fate == StageFate::kOther) spoil();
    if (order.spec.mode == messages::UpdateMode::kDirect && fate != StageFate::kRefused)
        is_torn_ = true;
    return task;
}

ModelWorker::Task ModelWorker::begin_fill(const messages::WorkerFill& order, StageFate fate) {
    const Task task{.update = order.update, .bucket = order.bucket};
    if (!stage_ || stage_->update != order.update || stage_->task) {
        fail(fmt::format(
            "bucket {} of update {}, which does not wait for one here",
            order.bucket,
            static_cast<std::uint64_t>(order.update)
        ));
        return task;
    }
    const std::string& bytes = name_of_bytes(order.source);
    stage_->task = task;
    stage_->fate = fate;
    // The model has no tensors with an adapter's names, and an adapter has none with the model's.
    if (are_of_adapter(bytes) == stage_->adapter.empty()) stage_->fate = StageFate::kBroken;
    add_bytes(bytes);
    if (fate == StageFate::kOther) spoil();
    return task;
}

// The same bytes again change nothing. REQUIRES: a stage.
void ModelWorker::add_bytes(const std::string& bytes) {
    if (!stage_->bytes.insert(bytes).second) return;
    stage_->weights = with_bytes(stage_->weights, bytes);
    stage_->num_missing = std::max<std::int64_t>(0, stage_->num_missing - 1);
}

ModelWorker::Task ModelWorker::begin_finish(const messages::WorkerFinish& order) {
    const Task task{.update = order.update};
    if (!stage_ || stage_->update != order.update || stage_->task) {
        fail(fmt::format(
            "the end of update {}, which does not wait for it here",
            static_cast<std::uint64_t>(order.update)
        ));
        return task;
    }
    stage_->task = task;
    return task;
}

// This rank gets other bytes than the others, and does not know.
void ModelWorker::spoil() {
    stage_->weights = static_cast<WeightsId>(
        hash_of(static_cast<std::uint64_t>(stage_->weights), replica_, raw(rank_))
    );
}

scheduler::FromWorker ModelWorker::finish(const Task& task) {
    stage_->task.reset();
    if (!task.bucket) return vote();
    return messages::WorkerFilled{
        .update = task.update, .bucket = *task.bucket, .outcome = outcome_of_stage()};
}

messages::RankOutcome ModelWorker::outcome_of_stage() const {
    const StageFate fate = stage_->fate;
    messages::RankOutcome outcome;
    outcome.rank = rank_;
    outcome.num_missing = stage_->num_missing;
    outcome.ok = fate == StageFate::kGood || fate == StageFate::kOther;
    outcome.phase = fate == StageFate::kRefused ? messages::UpdatePhase::kIdle
                                                : messages::UpdatePhase::kStaging;
    if (!outcome.ok) {
        outcome.code = ErrorCode::kDataLoss;
        outcome.problems = {"layer.weight: the simulator broke it"};
        outcome.num_problems = 1;
    }
    return outcome;
}

messages::WorkerStaged ModelWorker::vote() {
    Stage& stage = *stage_;
    messages::WorkerStaged vote;
    vote.update = stage.update;
    vote.outcome = outcome_of_stage();
    if (vote.outcome.ok && !stage.adapter.empty() && stage.num_missing > 0) {
        vote.outcome.ok = false;
        vote.outcome.code = ErrorCode::kDataLoss;
        vote.outcome.problems = {"layer.lora_B.weight: missing"};
        vote.outcome.num_problems = 1;
    }
    stage.is_ok = vote.outcome.ok;
    if (stage.is_ok) {
        vote.outcome.phase = messages::UpdatePhase::kPrepared;
        vote.digests = parts(stage.weights);
        if (stage.mode == messages::UpdateMode::kDirect) live_ = stage.weights;
        if (!stage.adapter.empty()) vote.adapter_bytes = kAdapterBytes;
    }
    oracle_.voted(static_cast<std::uint64_t>(stage.update), replica_, raw(rank_), stage.is_ok);
    return vote;
}

std::optional<ModelWorker::Staged> ModelWorker::staged() const {
    if (!stage_) return std::nullopt;
    return Staged{
        stage_->update,
        stage_->bytes,
        stage_->is_whole,
        stage_->stands_alone,
        !stage_->adapter.empty()};
}

messages::WorkerCommitted ModelWorker::commit(const messages::WorkerCommit& order) {
    const auto id = static_cast<std::uint64_t>(order.update);
    if (order.rollback) {
        if (!retained_) {
            fail("a rollback with nothing retained");
        } else {
            std::swap(live_, *retained_);
        }
    } else if (!stage_ || stage_->update != order.update || !stage_->is_ok) {
        fail(fmt::format("update {} is committed and not staged here (P2)", id));
    } else if (oracle_.commit_ordered(id, num_replicas_, shape_.tp); !stage_->adapter.empty()) {
        commit_adapter(static_cast<messages::AdapterId>(id), order.epoch);
        return {.update = order.update, .rank = rank_, .epoch = order.epoch};
    } else {
        if (stage_->mode == messages::UpdateMode::kStaged) {
            if (!shape_.lends) retained_ = live_;
            live_ = stage_->weights;
        }
        if (are_weights_gone_) retained_.reset();
        is_torn_ = false;
        are_weights_gone_ = false;
        stage_.reset();
    }
    if (order.epoch <= epoch_)
        fail(fmt::format("epoch {} after epoch {}", raw(order.epoch), raw(epoch_)));
    epoch_ = order.epoch;
    oracle_.committed(epoch_, live_);
    return {.update = order.update, .rank = rank_, .epoch = epoch_};
}

std::optional<WeightsId> ModelWorker::adapter(messages::AdapterId id) const {
    for (const auto* versions : {&adapters_, &evicted_}) {
        const auto place = versions->find(id);
        if (place != versions->end()) return place->second;
    }
    return std::nullopt;
}

std::optional<messages::AdapterId> ModelWorker::previous_adapter(const std::string& name) const {
    const auto place = previous_adapters_.find(name);
    return place == previous_adapters_.end() ? std::nullopt : std::optional(place->second);
}

// A partial update replaces a part of the beginning version by the weights that its label names. In
// a session, and in a call with named bytes, the bytes follow.
WeightsId ModelWorker::adapter_weights_of(const messages::WorkerStage& order) {
    const messages::SourceKind kind = order.spec.source.kind;
    const bool has_bytes =
        kind == messages::SourceKind::kBuckets || kind == messages::SourceKind::kIpc;
    const WeightsId sent = has_bytes ? WeightsId{} : weights_of(order.spec.label);
    const bool is_sparse = order.spec.source.format == messages::TensorFormat::kSparse;
    if (!order.begins_as) {
        if (is_sparse || order.spec.partial)
            fail("a part of an adapter begins with no version (P2)");
        return sent;
    }
    const std::optional<WeightsId> base = adapter(*order.begins_as);
    if (!base) {
        fail(fmt::format(
            "a stage begins with adapter {}, which is not there",
            static_cast<std::uint64_t>(*order.begins_as)
        ));
        return sent;
    }
    if (order.rollback) return *base;
    const std::string& declared = order.spec.base_digest;
    const bool is_other = !declared.empty() && declared != version_digest_of(*base, shape_.tp);
    if (is_other || (is_sparse && declared.empty())) {
        fail(fmt::format(
            "a part of adapter '{}' changes a version that it was not made for (P2)",
            order.spec.adapter
        ));
    }
    return has_bytes ? *base : AdapterBook::together(*base, sent);
}

// Every stage but a rollback's gives up the version before.
void ModelWorker::begin_adapter(
    const messages::WorkerStage& order, StageFate fate, const Task& task
) {
    const std::string& name = order.spec.adapter;
    if (order.rollback && previous_adapter(name) != order.begins_as)
        fail(fmt::format("adapter '{}' returns to a version that was given up (P2)", name));
    if (!order.rollback) previous_adapters_.erase(name);
    stage_ = Stage{
        .update = order.update,
        .fate = fate,
        .weights = adapter_weights_of(order),
        .task = task,
        .is_whole = !order.spec.partial,
        .stands_alone = order.spec.source.kind == messages::SourceKind::kIpc,
        .adapter = name,
        .policy = order.spec.adapter_policy,
        .is_pinned = order.spec.adapter_pinned,
        .begins_as = order.begins_as,
        .is_rollback = order.rollback,
        .is_sparse = order.spec.source.format == messages::TensorFormat::kSparse};
    const bool is_session = order.spec.source.kind == messages::SourceKind::kBuckets;
    if (is_session && stage_->is_whole) stage_->num_missing = kTensors;
    if (stage_->stands_alone) add_bytes(name_of_bytes(order.spec.source));
    if (fate == StageFate::kOther) spoil();
}

// REQUIRES: a stage of an adapter.
void ModelWorker::commit_adapter(messages::AdapterId id, Epoch number) {
    const std::string name = stage_->adapter;
    const AdapterBook::Loaded loaded{
        .name = name,
        .number = number,
        .weights = stage_->weights,
        .policy = stage_->policy,
        .is_pinned = stage_->is_pinned,
        .begins_as = stage_->begins_as,
        .is_rollback = stage_->is_rollback,
        .is_sparse = stage_->is_sparse};
    if (auto problem = oracle_.adapters().committed(id, loaded)) fail(*problem);
    adapters_[id] = stage_->weights;
    const auto [newest, is_first] = newest_adapters_.try_emplace(name, id);
    if (!is_first) previous_adapters_[name] = std::exchange(newest->second, id);
    stage_.reset();
}

// No plan names the adapter any more.
void ModelWorker::forget(messages::AdapterId id) {
    if (adapters_.erase(id) + evicted_.erase(id) == 0)
        fail(fmt::format("adapter {} is forgotten twice", static_cast<std::uint64_t>(id)));
    if (raw(rank_) == 0) ++oracle_.adapters().num_forgotten;
}

void ModelWorker::evict(messages::AdapterId id) {
    if (auto problem = oracle_.adapters().problem_of_eviction(id)) fail(*problem);
    if (auto entry = adapters_.extract(id); !entry.empty()) evicted_.insert(std::move(entry));
    if (raw(rank_) == 0) ++oracle_.adapters().num_evictions;
}

// The adapter stays in memory: the oracle counts a failed eviction.
void ModelWorker::note_not_evicted(messages::AdapterId id) {
    if (adapters_.contains(id) && raw(rank_) == 0) ++oracle_.adapters().num_not_evicted;
}

messages::WorkerRestored ModelWorker::restore(std::uint64_t order, messages::AdapterId id) {
    if (auto entry = evicted_.extract(id); !entry.empty()) adapters_.insert(std::move(entry));
    if (raw(rank_) == 0) ++oracle_.adapters().num_restores;
    return {.rank = rank_, .order = order, .id = id};
}

messages::WorkerDropped ModelWorker::drop(const messages::WorkerDrop& order) {
    if (stage_ && stage_->update == order.update) stage_.reset();
    return {.update = order.update, .rank = rank_};
}

messages::WorkerMemoryDone ModelWorker::change_memory(
    const messages::WorkerMemory& order, bool fails
) {
    messages::WorkerMemoryDone done{.call = order.call, .rank = rank_};
    if (fails) {
        done.verdict.code = ErrorCode::kResourceExhausted;
        done.verdict.message = "the simulator has no room";
    }
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        const bool is_meant =
            !fails && std::find(order.tags.begin(), order.tags.end(), tag) != order.tags.end();
        if (is_meant && order.action == messages::MemoryAction::kRelease &&
            released_.insert(tag).second) {
            if (tag == messages::MemoryTag::kKvCache) {
                std::fill(kv_.begin(), kv_.end(), Entry{});
                states_.forget();
            } else {
                if (stage_) fail("weights are released under a stage");
                retained_.reset();
                are_weights_kept_ = order.keep_weights;
            }
        } else if (is_meant && order.action == messages::MemoryAction::kResume && released_.erase(tag) > 0) {
            if (tag == messages::MemoryTag::kWeights && !are_weights_kept_)
                are_weights_gone_ = true;
        }
        done.tags.push_back({
            .tag = tag,
            .state = released_.contains(tag) ? messages::MemoryState::kReleased
                                             : messages::MemoryState::kResident,
        });
    }
    return done;
}

messages::WorkerDigests ModelWorker::digests(CallId call) const {
    return {.call = call, .rank = rank_, .epoch = epoch_, .digests = parts(live_)};
}

messages::WorkerTensor ModelWorker::tensor(const messages::WorkerReadTensor& order) const {
    messages::WorkerTensor tensor;
    tensor.call = order.call;
    tensor.rank = rank_;
    tensor.epoch = epoch_;
    tensor.tensor.name = order.name;
    return tensor;
}

}  // namespace pitstop::sim
