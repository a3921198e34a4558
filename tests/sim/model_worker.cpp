#include "tests/sim/model_worker.h"

#include "tests/sim/pusher.h"
#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

// A bucket brings one of them.
constexpr std::int64_t kTensors = 2;

bool accepts_lag(const messages::TokenizedRequest& request, std::int64_t lag) {
    return request.kv_tolerance == messages::KvTolerance::kKeep || lag == 0 ||
           (request.kv_tolerance == messages::KvTolerance::kMaxLag && lag <= request.kv_max_lag);
}

}  // namespace

WeightsId weights_of(const std::string& label) {
    const Digest digest = digest_of(label);
    return static_cast<WeightsId>(digest.lane0 ^ digest.lane1);
}

WeightsId with_bytes(WeightsId weights, const std::string& bytes) {
    const Digest digest = digest_of(bytes);
    return static_cast<WeightsId>(
        hash_of(static_cast<std::uint64_t>(weights), digest.lane0, digest.lane1)
    );
}

std::vector<messages::PartDigest> parts_of(WeightsId weights, Rank rank, int tp) {
    const auto id = static_cast<std::uint64_t>(weights);
    messages::PartDigest split{
        .name = "layer.weight", .shape = {8, 8}, .part = raw(rank), .parts = tp};
    split.lane0 = hash_of(id, raw(rank));
    split.lane1 = hash_of(id, raw(rank), 1);
    messages::PartDigest copied{.name = "norm.weight", .shape = {8}, .part = 0, .parts = 1};
    copied.lane0 = hash_of(id, 99);
    copied.lane1 = hash_of(id, 98);
    return {split, copied};
}

ModelWorker::ModelWorker(
    int replica, Rank rank, const ModelShape& shape, int num_replicas, Oracle& oracle
)
    : replica_(replica), rank_(rank), shape_(shape), num_replicas_(num_replicas), oracle_(oracle) {
    if (raw(rank) == 0) kv_.resize(static_cast<std::size_t>(shape.num_pages * shape.page_size));
    slots_.resize(static_cast<std::size_t>(shape.num_slots));
}

void ModelWorker::fail(const std::string& what) {
    oracle_.fail(fmt::format("replica {} rank {}: {}", replica_, raw(rank_), what));
}

messages::WorkerHello ModelWorker::hello() const {
    messages::WorkerHello hello;
    hello.rank = rank_;
    hello.tp = shape_.tp;
    hello.model_type = "sim";
    hello.context_len = shape_.context_len;
    hello.vocab_size = kVocab;
    hello.num_pages = shape_.num_pages;
    hello.page_size = shape_.page_size;
    hello.num_slots = shape_.num_slots;
    hello.eos_ids = {kEos};
    hello.update_mode = shape_.lends ? "lend" : "staged";
    hello.digests = parts(live_);
    return hello;
}

messages::StepResult ModelWorker::run(const messages::StepPlan& plan) {
    messages::StepResult result;
    result.step = plan.step;
    result.epoch = epoch_;
    result.rank = rank_;
    if (auto problem = messages::invalid(plan)) fail("an invalid plan: " + *problem);
    if (plan.step <= last_step_)
        fail(fmt::format("step {} after step {}", raw(plan.step), raw(last_step_)));
    last_step_ = plan.step;
    if (is_torn_) fail("a pass over torn weights (P2)");
    if (are_weights_gone_) fail("a pass over weights that are gone");
    if (!released_.empty())
        fail(fmt::format("a pass while {} is released", name_of(*released_.begin())));
    oracle_.ran(replica_, raw(rank_), plan.step, plan.epoch, epoch_, live_);
    if (raw(rank_) != 0 || oracle_.problem()) return result;

    for (const messages::RequestSetup& setup : plan.setups) {
        if (raw(setup.slot) < 0 || raw(setup.slot) >= shape_.num_slots) {
            fail(fmt::format("slot {}", raw(setup.slot)));
            return result;
        }
        slots_[static_cast<std::size_t>(raw(setup.slot))] = {setup, {}, true};
        oracle_.not_finite().begins(setup.key);
    }
    PlacedRow placed{.plan = plan};
    for (const messages::PlanRow& row : plan.rows) {
        placed.row = row;
        run_row(placed, result);
        if (oracle_.problem()) return result;
        placed.first_token += static_cast<std::size_t>(row.num_new);
        placed.first_page += static_cast<std::size_t>(row.num_pages);
        placed.first_target += static_cast<std::size_t>(row.num_scored);
        ++placed.index;
    }
    return result;
}

void ModelWorker::run_row(const PlacedRow& placed, messages::StepResult& result) {
    const messages::PlanRow& row = placed.row;
    if (raw(row.slot) < 0 || raw(row.slot) >= shape_.num_slots ||
        !slots_[static_cast<std::size_t>(raw(row.slot))].is_set_up) {
        return fail(fmt::format("a row for slot {}, which is not set up", raw(row.slot)));
    }
    Slot& slot = slots_[static_cast<std::size_t>(raw(row.slot))];
    const RequestKey key = slot.setup.key;
    const std::int64_t end = row.begin + row.num_new;
    if (row.num_pages * shape_.page_size < end)
        return fail(
            fmt::format("request {}: {} pages for {} positions", raw(key), row.num_pages, end)
        );
    Context context{.kv = {raw(epoch_), raw(epoch_)}};
    if (auto problem = read_context(placed, key, context)) return fail(*problem);
    if (auto problem = write_context(placed, slot, context)) return fail(*problem);

    score(placed, key, context, result);
    if (end == slot.setup.prompt_len) oracle_.read_prompt(key, context.kv);
    if (row.output_index >= 0) sample(placed, slot, context, result);
    if (!context.bad) return;
    result.not_finite.push_back(*context.bad);
    oracle_.not_finite().met(
        key, {placed.plan.step, epoch_, context.bad->position, context.bad->kind, context.is_lent}
    );
}

void ModelWorker::score(
    const PlacedRow& placed, RequestKey key, const Context& context, messages::StepResult& result
) {
    const messages::PlanRow& row = placed.row;
    if (row.num_scored > 0) oracle_.scored(key, epoch_);
    for (std::int64_t i = 0; i < row.num_scored; ++i) {
        const TokenId target =
            placed.plan.targets.values[placed.first_target + static_cast<std::size_t>(i)];
        const std::int64_t position = row.begin + row.num_new - row.num_scored + i;
        result.scores.logprobs.values.push_back(score_at(target, position, live_, context.kv));
        result.scores.ranks.values.push_back(raw(target) + 1);
    }
}

void ModelWorker::sample(
    const PlacedRow& placed, Slot& slot, Context& context, messages::StepResult& result
) {
    const messages::PlanRow& row = placed.row;
    const RequestKey key = slot.setup.key;
    const std::int64_t end = row.begin + row.num_new;
    if (end != slot.setup.prompt_len + row.output_index) {
        return fail(fmt::format(
            "request {}: output {} is sampled at position {}", raw(key), row.output_index, end
        ));
    }
    const std::uint64_t seed = *slot.setup.sampling.seed;
    const bool may_stop = row.output_index >= slot.setup.sampling.min_new_tokens;
    const bool is_last_finite =
        finite_at(context.last_token, live_) == Finite::kAll && context.is_finite;
    slot.last = token_at(seed, row.output_index, live_, may_stop, slot.setup.stop_ids);
    if (!is_last_finite) {
        slot.last = messages::kNotFinite;
    } else if (!are_scores_finite(seed, row.output_index, live_)) {
        slot.last = messages::kScoresNotFinite;
        if (!context.bad) context.bad = {placed.index, end - 1, messages::NotFiniteKind::kScores};
    }
    oracle_.sampled(key, row.output_index, slot.last, context.kv);
    result.sampled.values.push_back(slot.last);
    result.logprobs.values.push_back(logprob_at(seed, row.output_index, live_));
    result.ranks.values.push_back(raw(slot.last) + 1);
}

ModelWorker::Entry* ModelWorker::entry_of(const PlacedRow& placed, std::int64_t position) {
    const auto page =
        raw(placed.plan.pages
                .values[placed.first_page + static_cast<std::size_t>(position / shape_.page_size)]);
    if (page < 0 || page >= shape_.num_pages) return nullptr;
    return &kv_[static_cast<std::size_t>(page * shape_.page_size + position % shape_.page_size)];
}

std::optional<std::string> ModelWorker::read_context(
    const PlacedRow& placed, RequestKey key, Context& context
) {
    const messages::StepPlan& plan = placed.plan;
    const bool is_first_row = std::any_of(
        plan.setups.begin(),
        plan.setups.end(),
        [&](const messages::RequestSetup& setup) { return setup.slot == placed.row.slot; }
    );
    for (std::int64_t position = 0; position < placed.row.begin; ++position) {
        const Entry* entry = entry_of(placed, position);
        if (entry == nullptr) return fmt::format("request {}: a page out of range", raw(key));
        const std::optional<TokenId> want = oracle_.context_token(key, position);
        if (!want || entry->position != position || entry->token != *want) {
            return fmt::format(
                "request {}: position {} attends to KV of token {} at {} (step {})",
                raw(key),
                position,
                raw(entry->token),
                entry->position,
                raw(plan.step)
            );
        }
        context.chain = hash_of(context.chain, raw(*want));
        if (entry->chain != context.chain) {
            return fmt::format(
                "request {}: position {} attends to KV of another context", raw(key), position
            );
        }
        context.kv.min = std::min(context.kv.min, raw(entry->epoch));
        context.kv.max = std::max(context.kv.max, raw(entry->epoch));
        context.is_finite = context.is_finite && entry->is_finite;
        // Two steps may be under way: of the one before this nobody knew when this was planned.
        context.is_lent = context.is_lent || (is_first_row && !entry->is_finite);
        if (is_first_row && !entry->is_finite && raw(entry->step) + 1 < raw(plan.step)) {
            return fmt::format(
                "request {}: starts from cached KV that is not finite, at {}", raw(key), position
            );
        }
        const std::int64_t lag = raw(plan.epoch) - raw(entry->epoch);
        if (is_first_row && !accepts_lag(oracle_.request(key), lag)) {
            return fmt::format(
                "request {}: starts from cached KV {} epochs old (P9)", raw(key), lag
            );
        }
    }
    return std::nullopt;
}

std::optional<std::string> ModelWorker::write_context(
    const PlacedRow& placed, const Slot& slot, Context& context
) {
    const RequestKey key = slot.setup.key;
    const std::int64_t end = placed.row.begin + placed.row.num_new;
    const std::int64_t first_logits =
        end - std::max<std::int64_t>(placed.row.num_scored, placed.row.output_index >= 0 ? 1 : 0);
    for (std::int64_t i = 0; i < placed.row.num_new; ++i) {
        const std::int64_t position = placed.row.begin + i;
        const TokenId planned =
            placed.plan.tokens.values[placed.first_token + static_cast<std::size_t>(i)];
        const TokenId token = placed.row.takes_sampled ? slot.last : planned;
        const std::optional<TokenId> want = oracle_.context_token(key, position);
        if (!want || token != *want) {
            return fmt::format(
                "request {}: token {} at position {}, not {}",
                raw(key),
                raw(token),
                position,
                want ? raw(*want) : -1
            );
        }
        context.chain = hash_of(context.chain, raw(token));
        Entry* entry = entry_of(placed, position);
        if (entry == nullptr) return fmt::format("request {}: a page out of range", raw(key));
        const Finite finite = finite_at(token, live_);
        context.is_finite = context.is_finite && finite != Finite::kNothing;
        *entry = {position, token, context.chain, epoch_, placed.plan.step, context.is_finite};
        context.last_token = token;
        using Kind = messages::NotFiniteKind;
        const bool has_logits = position >= first_logits;
        if (context.bad || (context.is_finite && (finite == Finite::kAll || !has_logits))) continue;
        context.bad = {placed.index, position, has_logits ? Kind::kLogits : Kind::kState};
    }
    return std::nullopt;
}

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
    if (released_.contains(messages::MemoryTag::kWeights)) fail("a stage into released memory");
    const bool needs_copy = order.spec.mode == messages::UpdateMode::kStaged && !are_weights_gone_;
    if (shape_.lends && needs_copy && !released_.contains(messages::MemoryTag::kKvCache))
        fail("a second copy of the weights beside KV, where only one of them has room");
    retained_.reset();  // its copy is being overwritten
    const bool is_part = order.spec.source.kind == messages::SourceKind::kIpc;  // that stands alone
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
    stage_->task = task;
    stage_->fate = fate;
    add_bytes(name_of_bytes(order.source));
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
    stage.is_ok = vote.outcome.ok;
    if (stage.is_ok) {
        vote.outcome.phase = messages::UpdatePhase::kPrepared;
        vote.digests = parts(stage.weights);
        if (stage.mode == messages::UpdateMode::kDirect) live_ = stage.weights;
    }
    oracle_.voted(static_cast<std::uint64_t>(stage.update), replica_, raw(rank_), stage.is_ok);
    return vote;
}

std::optional<ModelWorker::Staged> ModelWorker::staged() const {
    if (!stage_) return std::nullopt;
    return Staged{stage_->update, stage_->bytes, stage_->is_whole, stage_->stands_alone};
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
    } else {
        oracle_.commit_ordered(id, num_replicas_, shape_.tp);
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
