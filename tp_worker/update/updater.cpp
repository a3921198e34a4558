#include "tp_worker/update/updater.h"

#include "base/check.h"
#include "base/log.h"
#include "messages/sparse_buckets.h"
#include "messages/worker_orders.h"
#include "tp_worker/update/memory_tags.h"
#include "tp_worker/weights/weight_stage.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// Delivers a bucket, unless its session has nothing that the bucket could change.
Result<> deliver_bucket(SourceArgs source, const messages::UpdateSpec& session) {
    source.expect = WeightStage::Expect::kMore;
    const auto problem = messages::problem_of_bucket(session, source.source);
    if (!problem) return deliver(source);
    return decline(source, {ErrorCode::kFailedPrecondition, *problem});
}

messages::AdapterId id_of(messages::UpdateId update) {
    return static_cast<messages::AdapterId>(static_cast<std::uint64_t>(update));
}

}  // namespace

TimePoint deadline_of(std::int64_t timeout_ms) {
    return timeout_ms > 0 ? Clock::now() + std::chrono::milliseconds(timeout_ms) : TimePoint::max();
}

// On a CPU each worker has a different name, because a sender must name each rank.
std::string device_uuid(const Device& device, ReplicaId replica, Rank rank) {
    if (device.is_cuda()) return device.uuid();
    return fmt::format("CPU-{}-{}", raw(replica), raw(rank));
}

Updater::Updater(
    Engine& engine,
    Pace& pace,
    FaultPoint& fault_point,
    ReplicaPlace place,
    const std::string& model_dir
)
    : engine_(engine),
      pace_(pace),
      fault_point_(fault_point),
      groups_(engine.nccl_turn()),
      meter_(engine, background_),
      grammar_compiler_({
          .model_dir = model_dir,
          .vocab_len = engine.config().vocab_len,
          .end_ids = engine.describe().eos_ids,
          .add = [&engine](
                     messages::GrammarId id, Grammars::Shared grammar
                 ) { engine.grammars().add(id, std::move(grammar)); },
          .answer = [this](messages::Frames answer) { background_.answer(std::move(answer)); },
      }) {
    live_digests_ = engine.describe().digests;
    worker_.place = place;
    worker_.rank = engine.rank();
    worker_.tp = engine.tp();
    worker_.device_uuid = device_uuid(engine.device(), place.replica, engine.rank());
    worker_.groups = &groups_;
    worker_.is_over = &is_over_;
}

Updater::~Updater() {
    is_over_ = true;
    if (stage_) stage_->is_dropped = true;  // so that the background ends soon
    background_.stop();
}

bool Updater::takes(std::string_view type) { return messages::WorkerOrders::has(type); }

Result<std::vector<messages::Frames>> Updater::handle_order(const messages::Frames& order) {
    meter_.touch();
    std::vector<messages::Frames> answers;
    const Result<bool> taken = messages::WorkerOrders::dispatch(
        order,
        messages::UnknownFields::kIgnore,
        [&](auto message) -> Result<> {
            ASSIGN_OR_RETURN(answers, execute(std::move(message)));
            return Ok{};
        }
    );
    if (!taken) return taken.error();
    CHECK(*taken);
    return answers;
}

std::vector<messages::Frames> Updater::take_answers() { return background_.take_answers(); }

// Returns the arguments of the current stage, which fills `target`; `target` is null for host
// memory, whose address is known only after the allocation.
StageArgs Updater::args_for(Arena* target) {
    WeightStore& store = *engine_.weights();
    GpuStaging* const gpu = store.gpu_staging();
    const WeightStore::Ledgers ledgers = store.ledgers(target);
    std::function<Result<>(int)> adopt;
    if (!stage_->is_in_place && gpu == nullptr)
        adopt = [target, ledger = ledgers.target](int fd) {
            Result<> adopted = target->adopt(fd);
            ledger->look_at(*target);
            return adopted;
        };
    return {
        .update = stage_->update,
        .spec = stage_->spec,
        .rank = engine_.rank(),
        .layout = engine_.layout(),
        .config = engine_.config(),
        .ops = engine_.ops(),
        .add_run = engine_.device().add_run(),
        .gpu = target != nullptr ? gpu : nullptr,
        .pieces = target != nullptr ? nullptr : &store.pieces(),
        .target = target != nullptr ? target->data() : nullptr,
        .live = store.live_data(),
        .target_ledger = *ledgers.target,
        .live_ledger = *ledgers.live,
        .target_bytes = store.live_memory().bytes(),  // all copies have the same size
        .takes_shards = !stage_->is_in_place,
        .adopt = std::move(adopt),
        .pace = pace_,
        .num_threads = engine_.num_threads(),
        .is_dropped = stage_->is_dropped,
        .at = [this](std::string_view name) { fault_point_.reach(name); },
    };
}

// Allocates the memory that the stage will write to.
Result<> Updater::reserve_memory(StagedUpdate& stage, Arena* target, CopyLedger& ledger) {
    if (stage.host != nullptr) {
        if (stage.host->host_bytes() == 0) ledger.forget_all();
        return stage.host->commit();
    }
    Result<> result = stage.is_in_place ? target->disown() : target->renew();
    ledger.look_at(*target);
    return result;
}

// Moves the bytes of a commit or a rollback if versions are staged in host memory. Runs in the
// background, after earlier reads and digests of the live copy. The loop's thread waits for it as
// for a pass, because the next plan belongs to the new version. Afterwards the resident bytes are
// digested once more (P10). Errors: kDataLoss if they differ from the staged ones.
Result<> Updater::exchange(Epoch epoch) {
    WeightStore& store = *engine_.weights();
    let_go(store.live_memory());
    std::promise<Result<std::vector<messages::PartDigest>>> done;
    background_.give([this, &store, &done] {
        store.exchange(engine_.device().stream());
        done.set_value(store.digest(store.live_data(), {}));
        return std::vector<messages::Frames>{};
    });
    ASSIGN_OR_RETURN(const std::vector<messages::PartDigest> resident, done.get_future().get());
    std::swap(live_digests_, host_digests_);
    const auto is_same = [](const messages::PartDigest& a, const messages::PartDigest& b) {
        return a.lane0 == b.lane0 && a.lane1 == b.lane1;
    };
    if (live_digests_.empty() || std::ranges::equal(resident, live_digests_, is_same)) return Ok{};
    return make_error(
        ErrorCode::kDataLoss,
        "epoch {}: the weights on {} have another digest than those staged in host memory",
        raw(epoch),
        engine_.device().name()
    );
}

Result<std::vector<messages::Frames>> Updater::execute(messages::WorkerStage order) {
    if (stage_) {
        return make_error(
            ErrorCode::kFailedPrecondition, "cannot stage an update: another one is staged"
        );
    }
    WeightStore* store = engine_.weights();
    if (store == nullptr) {
        return std::vector{refusal_of(
            order,
            engine_.rank(),
            {ErrorCode::kUnsupported,
             "this worker computes nothing (--load-format null) and has no weights"}
        )};
    }
    if (!order.spec.adapter.empty()) return stage_adapter(std::move(order));
    HostCopy* const host = store->host_target(order.spec.mode);
    Arena* const target = host == nullptr ? &store->target(order.spec.mode) : nullptr;
    const bool is_in_place = target == &store->live_memory();
    store->forget_retained();
    if (target != nullptr) let_go(*target);
    const std::int64_t timeout_ms = order.timeout_ms;
    stage_ = std::make_shared<StagedUpdate>(std::move(order));
    stage_->host = host;
    stage_->is_in_place = is_in_place;
    if (GpuStaging* const gpu = store->gpu_staging()) gpu->start_after(engine_.device().stream());
    stage_->fill.emplace(args_for(target));
    const bool is_session = stage_->spec.source.kind == messages::SourceKind::kBuckets;
    if (is_in_place && !is_session) stage_->stand();
    give_stage(
        timeout_ms,
        [this, target, &live = store->live_memory(), ledgers = store->ledgers(target)](
            StagedUpdate& stage
        ) {
            // A reader of the target's previous contents may have delayed this until now.
            Result<> result = reserve_memory(stage, target, *ledgers.target);
            ledgers.live->look_at(live);
            if (result) result = stage.fill->begin(stage.host ? stage.host->data() : nullptr);
            return result;
        }
    );
    return std::vector<messages::Frames>{};
}

// Gives the stage's job to the background. `prepare` allocates memory before the source delivers.
void Updater::give_stage(std::int64_t timeout_ms, StagedUpdate::Job prepare) {
    const bool is_session = stage_->spec.source.kind == messages::SourceKind::kBuckets;
    give(
        is_session ? messages::UpdateOrder::kOpen : messages::UpdateOrder::kStage,
        0,
        [this, is_session, prepare = std::move(prepare), deadline = deadline_of(timeout_ms)](
            StagedUpdate& stage
        ) {
            Result<> result = prepare(stage);
            if (is_session) return result;
            if (stage.is_rollback)
                return result ? adapters_.finish(*stage.fill, stage.adapter) : result;
            const SourceArgs source{
                .source = stage.spec.source,
                .worker = worker_,
                .stage = *stage.fill,
                .mappings = stage.mappings,
                .deadline = deadline,
            };
            result = result ? deliver(source) : decline(source, result.error());
            stage.mappings.clear();
            stage.spec.source.payloads = {};  // may be large
            return result ? adapters_.finish(*stage.fill, stage.adapter) : result;
        }
    );
}

// Runs the job in the background, after all earlier ones, and answers. `bucket` 0: opens a session.
void Updater::give(messages::UpdateOrder order, std::int64_t bucket, StagedUpdate::Job job) {
    stage_->begin(order);
    background_.give([stage = stage_, order, bucket, job = std::move(job)] {
        return std::vector{stage->run(order, bucket, job)};
    });
}

Result<std::vector<messages::Frames>> Updater::execute(messages::WorkerFill order) {
    if (!may(order.update, messages::UpdateOrder::kFill)) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "cannot stage a bucket of update {}: that session is not open",
            static_cast<std::uint64_t>(order.update)
        );
    }
    const std::int64_t bucket = order.bucket;
    const TimePoint deadline = deadline_of(order.timeout_ms);
    give(
        messages::UpdateOrder::kFill,
        bucket,
        [this, deadline, order = std::move(order)](StagedUpdate& stage) {
            const SourceArgs source{
                .source = order.source,
                .worker = worker_,
                .stage = *stage.fill,
                .mappings = stage.mappings,
                .deadline = deadline,
            };
            return deliver_bucket(source, stage.spec);
        }
    );
    return std::vector<messages::Frames>{};
}

Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerFinish& order) {
    if (!may(order.update, messages::UpdateOrder::kStage)) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "cannot end update {}: that session is not open",
            static_cast<std::uint64_t>(order.update)
        );
    }
    give(messages::UpdateOrder::kStage, 0, [this](StagedUpdate& stage) {
        stage.mappings.clear();  // the sender is done
        return adapters_.finish(*stage.fill, stage.adapter);
    });
    return std::vector<messages::Frames>{};
}

// Runs between two passes: the next plan belongs to the new version.
Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerCommit& order) {
    const TimePoint begin = Clock::now();
    fault_point_.reach("commit_begin");
    WeightStore* store = engine_.weights();
    if (order.rollback) {
        if (store == nullptr || !store->has_retained()) {
            return make_error(
                ErrorCode::kFailedPrecondition, "cannot roll back: no earlier version is retained"
            );
        }
        store->roll_back();
        if (store->host_target(messages::UpdateMode::kStaged) != nullptr)
            RETURN_IF_ERROR(exchange(order.epoch));
    } else {
        if (may(order.update, messages::UpdateOrder::kReady)) stage_->stand();
        if (!may(order.update, messages::UpdateOrder::kCommit)) {
            return make_error(
                ErrorCode::kFailedPrecondition,
                "cannot commit update {}: it is not staged",
                static_cast<std::uint64_t>(order.update)
            );
        }
        if (stage_->adapter.adapter) {
            adapters_.commit(id_of(order.update), std::move(stage_->adapter));
            stage_.reset();
            return std::vector{committed(order, begin)};
        }
        store->commit(stage_->spec.mode);
        (stage_->host != nullptr ? host_digests_ : live_digests_) = stage_->fill->digests();
        if (stage_->host != nullptr) RETURN_IF_ERROR(exchange(order.epoch));
        stage_.reset();
        end_loan();
    }
    engine_.set_epoch(order.epoch);
    committed_ = &store->live_memory();
    return std::vector{committed(order, begin)};
}

messages::Frames Updater::committed(const messages::WorkerCommit& order, TimePoint begin) {
    messages::WorkerCommitted answer;
    answer.update = order.update;
    answer.rank = engine_.rank();
    answer.epoch = order.epoch;
    answer.elapsed_us =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
    fault_point_.reach("commit_done");
    return encode(answer);
}

// With --update-mode lend, frees the memory of the copy that does not serve, because the next order
// gives that memory back to the KV cache.
void Updater::end_loan() {
    WeightStore* store = engine_.weights();
    if (!store->is_on_loan()) return;
    let_go(store->other_memory());
    background_.give([store] {
        store->let_go_of_other();
        return std::vector<messages::Frames>{};
    });
}

Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerDrop& order) {
    fault_point_.reach("drop_begin");
    messages::WorkerDropped answer;
    answer.update = order.update;
    answer.rank = engine_.rank();
    if (!stage_ || stage_->update != order.update) return std::vector{encode(answer)};
    stage_->is_dropped = true;
    stage_.reset();
    end_loan();
    // Answers after the stage has stopped writing: jobs are done in order.
    background_.give([answer] { return std::vector{encode(answer)}; });
    return std::vector<messages::Frames>{};
}

void Updater::keep_in(Keeper::Args args) {
    args.answer = [this](messages::Frames frames) { background_.answer(std::move(frames)); };
    keeper_ = std::make_unique<Keeper>(std::move(args));
}

// Stops the keeper from reading memory that is about to be overwritten or released.
void Updater::let_go(const Arena& memory) {
    if (committed_ == &memory) committed_ = nullptr;
    if (keeper_) keeper_->let_go(memory);
}

Result<std::vector<messages::Frames>> Updater::execute(const messages::WorkerKeep& step) {
    if (keeper_) {
        keeper_->handle_step(step, step.epoch == engine_.epoch() ? committed_ : nullptr);
        return std::vector<messages::Frames>{};
    }
    messages::WorkerKept answer;
    answer.call = step.call;
    answer.rank = engine_.rank();
    answer.step = step.step;
    answer.verdict =
        Error{ErrorCode::kUnsupported, "this worker was started without --keep-committed"};
    return std::vector{encode(answer)};
}

// Runs in the background, after earlier reads and digests, so that no memory disappears while
// they read it.
Result<std::vector<messages::Frames>> Updater::execute(messages::WorkerMemory order) {
    messages::WorkerMemoryDone refusal;
    refusal.call = order.call;
    refusal.rank = engine_.rank();
    const bool is_of_weights =
        std::ranges::find(order.tags, messages::MemoryTag::kWeights) != order.tags.end();
    if (stage_ && is_of_weights) {
        refusal.verdict = Error{ErrorCode::kFailedPrecondition, "an update is staged; end it"};
        return std::vector{encode(refusal)};
    }
    fault_point_.reach("memory_begin");
    const bool is_release = order.action == messages::MemoryAction::kRelease;
    if (is_release && is_of_weights && committed_ != nullptr) let_go(*committed_);
    if (background_.offer([this, order = std::move(order)] {
            return std::vector{encode(change_memory(engine_, order))};
        })) {
        WeightStore* store = engine_.weights();
        if (store != nullptr && is_release && is_of_weights) store->forget_retained();
        return std::vector<messages::Frames>{};
    }
    refusal.verdict = Background::too_many();
    return std::vector{encode(refusal)};
}

}  // namespace pitstop::tp_worker
