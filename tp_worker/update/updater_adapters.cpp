// Stages adapters into memory of their own: serving weights are not changed, and do not wait.
#include "tp_worker/update/updater.h"

#include <utility>

namespace pitstop::tp_worker {
namespace {

// An adapter of this size is staged in about 20 ms of processor time. Rests would delay its load
// by more than they speed up the passes that run meanwhile.
constexpr std::int64_t kUnpacedMax = std::int64_t{64} << 20;

}  // namespace

// Without an adapter, the stage can only tell its source that it cannot begin.
StageArgs Updater::args_for(StagedUpdate& stage, Adapter* adapter) {
    CopyLedger& ledger = adapter != nullptr ? adapter->ledger() : no_ledger_;
    const std::int64_t bytes = adapter != nullptr ? adapter->staged().bytes() : 0;
    std::byte* const memory = adapter != nullptr ? adapter->staged().data() : nullptr;
    return {
        .update = stage.update,
        .spec = stage.spec,
        .rank = engine_.rank(),
        .layout = adapter != nullptr ? adapter->layout() : engine_.layout(),
        .config = engine_.config(),
        .ops = engine_.ops(),
        .add_run = engine_.device().add_run(),
        .pieces = engine_.device().is_cuda() ? &engine_.weights()->pieces() : nullptr,
        .target = memory,
        .live = memory,
        .target_ledger = ledger,
        .live_ledger = ledger,
        .target_bytes = bytes,
        .pace = bytes <= kUnpacedMax ? unpaced_ : pace_,
        .num_threads = 1,
        .is_dropped = stage.is_dropped,
        .at = [this](std::string_view name) { fault_point_.reach(name); },
    };
}

Result<std::vector<messages::Frames>> Updater::stage_adapter(messages::WorkerStage order) {
    const std::int64_t timeout_ms = order.timeout_ms;
    stage_ = std::make_shared<StagedUpdate>(std::move(order));
    stage_->fill.emplace(args_for(*stage_, nullptr));
    give_stage(timeout_ms, [this](StagedUpdate& stage) { return open_adapter(stage); });
    return std::vector<messages::Frames>{};
}

Result<> Updater::open_adapter(StagedUpdate& stage) {
    ASSIGN_OR_RETURN(stage.adapter, adapters_.open(stage.spec, stage.begins_as, stage.is_dropped));
    stage.begin_fill(args_for(stage, stage.adapter.adapter.get()));
    return stage.fill->begin();
}

Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerForget& order) {
    for (const messages::AdapterId id : order.adapters) adapters_.forget(id);
    for (const messages::GrammarId id : order.grammars) engine_.grammars().forget(id);
    return std::vector<messages::Frames>{};
}

Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerAdapters& order) {
    adapters_.move(order);
    return std::vector<messages::Frames>{};
}

// Rank 0 draws every token that a grammar restricts (sampler.h), and answers.
Result<std::vector<messages::Frames>> Updater::execute(messages::WorkerCompile order) {
    if (raw(engine_.rank()) == 0) grammar_compiler_.compile(std::move(order));
    return std::vector<messages::Frames>{};
}

}  // namespace pitstop::tp_worker
