// Turns a plan into enqueued work, and the finished work into a result.
#include "base/check.h"
#include "base/time.h"
#include "messages/routes.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/model/null_model.h"
#include "tp_worker/model/sampler_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::tp_worker {

Engine::RunningStep::RunningStep() = default;
Engine::RunningStep::~RunningStep() = default;

Engine::~Engine() { wait_for_steps(); }

void Engine::wait_for_steps() {
    for (std::size_t i = 0; i < num_under_way_; ++i) {
        RunningStep& step = steps_[(first_ + i) % kStepsMax];
        if (!step.is_complete) transfers_->finish_turn();  // the step's memory is freed next
        step.is_complete = true;
    }
}

void Engine::leave() {
    wait_for_steps();
    constexpr Duration kPartingMax = std::chrono::milliseconds(500);
    if (gpu_communicator_) static_cast<void>(communicator_.barrier_within(kPartingMax));
}

Result<> Engine::start(const messages::StepPlan& plan) {
    CHECK(num_under_way_ < (runs_ahead() ? kStepsMax : 1));
    if (plan.epoch != epoch_) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "step {} is for weights of epoch {}; rank {} has epoch {}",
            raw(plan.step),
            raw(plan.epoch),
            raw(communicator_.rank()),
            raw(epoch_)
        );
    }
    // Only the host knows which draws of a row with drafts count, so the older step ends first.
    if (num_under_way_ > 0 && (has_drafts(plan) || oldest().planned.has_drafts()))
        RETURN_IF_ERROR(complete_older());
    RETURN_IF_ERROR(
        set_up_requests(plan, config_.vocab_len, &slots_, is_root() ? &grammars_ : nullptr)
    );
    for (const messages::RequestSetup& setup : plan.setups) {
        if (num_under_way_ > 0) oldest().set_up_anew.push_back(setup.slot);
    }
    RunningStep& step = steps_[(first_ + num_under_way_) % kStepsMax];
    step.begun = Clock::now();
    step.is_complete = false;
    step.set_up_anew.clear();
    step.ids.clear();
    RETURN_IF_ERROR(step.planned.prepare(plan, slots_, limits_));
    if (states_) RETURN_IF_ERROR(states_->prepare(plan));
    RETURN_IF_ERROR(step.adapters.find(plan, adapters_, communicator_.rank()));
    step.result = step.planned.empty_result(plan, communicator_.rank());
    if (kv_ahead_) kv_ahead_->note_used(plan.pages.values);
    if (model_) {
        RETURN_IF_ERROR(compute(plan, &step));
        if (!runs_ahead()) RETURN_IF_ERROR(complete(&step));
    } else {
        if (is_root())
            run_null_model(step.planned.logit_rows(), slots_, config_.vocab_len, &step.result);
        step.is_complete = true;
    }
    ++num_under_way_;
    return Ok{};
}

bool Engine::is_over() const {
    CHECK(num_under_way_ > 0);
    return steps_[first_].is_complete || transfers_->is_turn_over();
}

Result<messages::StepResult> Engine::finish() {
    CHECK(num_under_way_ > 0);
    RunningStep& step = oldest();
    RETURN_IF_ERROR(complete(&step));
    first_ = (first_ + 1) % kStepsMax;
    --num_under_way_;
    // If two steps are in progress, the second has the GPU once the first is done.
    const TimePoint now = Clock::now();
    const Duration elapsed = now - std::max(step.begun, last_finish_);
    last_finish_ = now;
    step.result.elapsed_us = std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count();
    return std::move(step.result);
}

Result<messages::StepResult> Engine::run(const messages::StepPlan& plan) {
    RETURN_IF_ERROR(start(plan));
    return finish();
}

// Enqueues the step. If its draws depend on an older step's draws (RequestState::follows_tokens()),
// the logits must wait for the host; the layers need not.
Result<> Engine::compute(const messages::StepPlan& plan, RunningStep* step) {
    const std::span<const LogitRow> wanted = step->planned.logit_rows();
    const bool is_long = static_cast<std::int64_t>(wanted.size()) > sizes_.logit_rows_max;
    const bool waits = num_under_way_ > 0 && follows_tokens(*step);
    // The chunks of a long step use turns of their own.
    if (is_long) RETURN_IF_ERROR(complete_older());
    const bool samples = !wanted.empty() && !is_long;
    ASSIGN_OR_RETURN(const StepBatch placed, place(plan, step));
    if (samples && !waits) prepare_sampler(step);
    place_routes(step);
    place_load(step);
    RETURN_IF_ERROR(enqueue_layers(placed, step));
    enqueue_routes(*step);
    enqueue_load(plan, *step);
    if (samples && waits) {
        RETURN_IF_ERROR(complete_older());
        prepare_sampler(step);
        transfers_->send();
    }
    note_draws(wanted, &slots_);
    if (is_long) {  // the step's chunks are waited for one by one
        RETURN_IF_ERROR(tensor_communicator().finish_sums());
        return compute_in_chunks(step);
    }
    if (step->call) RETURN_IF_ERROR(step->call->enqueue());
    RETURN_IF_ERROR(tensor_communicator().finish_sums());
    transfers_->end_turn();
    return Ok{};
}

bool Engine::follows_tokens(const RunningStep& step) const {
    return std::ranges::any_of(step.planned.logit_rows(), [&](const LogitRow& row) {
        return row.kind == LogitRow::Kind::kSample &&
               slots_[static_cast<std::size_t>(raw(row.slot))]->follows_tokens();
    });
}

// Places the step's arrays, and the tokens whose logits are wanted, among the transfers.
Result<StepBatch> Engine::place(const messages::StepPlan& plan, RunningStep* step) {
    StepBatch batch = step->planned.batch(plan);
    if (runs_ahead()) batch.sampled = sampler_->sampled();
    step->marks.assign(batch.num_padded > 0 ? 0 : batch.tokens.size(), 0);
    batch.marks = step->marks;
    if (states_) {
        states_->pad(step->planned.num_rows());
        batch.states = states_->places();
        batch.drafted_rows = states_->drafted_rows();
    }
    step->adapters.put_into(batch, device_.is_cuda());
    ASSIGN_OR_RETURN(StepBatch placed, model_->place(batch));
    const std::span<const LogitRow> wanted = step->planned.logit_rows();
    step->token_rows.clear();
    step->device_token_rows = nullptr;
    const bool is_long = static_cast<std::int64_t>(wanted.size()) > sizes_.logit_rows_max;
    if (step->planned.is_padded() || is_long) return placed;
    for (const LogitRow& row : wanted) step->token_rows.push_back(row.token_row);
    step->device_token_rows = transfers_->in(step->token_rows);
    return placed;
}

// Sums that cannot be captured must be begun here, also in steps that are padded.
bool Engine::begins_sums(const RunningStep& step) {
    return !step.planned.is_padded() || !tensor_communicator().may_be_captured();
}

void Engine::prepare_sampler(RunningStep* step) {
    const std::span<const LogitRow> wanted = step->planned.logit_rows();
    step->call = sampler_->prepare(
        model_->logits_of(static_cast<std::int64_t>(wanted.size())), wanted, slots_
    );
}

Result<> Engine::enqueue_layers(const StepBatch& placed, RunningStep* step) {
    const std::int64_t bytes = sum_bytes(static_cast<std::int64_t>(placed.tokens.size()));
    if (begins_sums(*step)) RETURN_IF_ERROR(tensor_communicator().begin_sums(bytes));
    transfers_->send();
    if (step->planned.is_padded()) return model_->run_padded(placed, weights_->live());
    RETURN_IF_ERROR(model_->forward(placed, weights_->live()));
    if (step->token_rows.empty()) return Ok{};
    model_->logits(
        step->device_token_rows,
        static_cast<std::int64_t>(step->token_rows.size()),
        weights_->live()
    );
    return Ok{};
}

// Downloads are placed last, so that the upload excludes them.
void Engine::place_routes(RunningStep* step) {
    const std::span<const std::int32_t> rows = step->planned.routed_rows();
    step->device_routed_rows = nullptr;
    step->device_routes = nullptr;
    if (rows.empty() || !is_root()) return;
    const auto row_bytes = static_cast<std::size_t>(routes()->row_bytes());
    std::vector<std::uint8_t>& values = step->result.routes.values;
    values.assign(rows.size() * row_bytes, 0);
    step->device_routed_rows = transfers_->in(rows);
    step->device_routes = transfers_->out(std::span(values));
}

void Engine::enqueue_routes(const RunningStep& step) {
    if (step.device_routes == nullptr) return;
    const Choices& choices = *model_->choices();
    device_.ops().route_rows({
        .chosen = choices.experts.data(),
        .layer_stride = choices.tokens_max * choices.per_token,
        .num_layers = choices.num_layers,
        .per_token = choices.per_token,
        .token_rows = step.device_routed_rows,
        .num_rows = std::ssize(step.planned.routed_rows()),
        .id_bytes = routes()->id_bytes(),
        .y = step.device_routes,
        .stream = device_.stream(),
    });
}

static_assert(kLoadCountsMax == messages::ExpertLoad::kCountsMax);

// One step per second reports the load, because the counts are large.
void Engine::place_load(RunningStep* step) {
    constexpr Duration kInterval = std::chrono::seconds(1);
    step->device_load = nullptr;
    if (!is_root() || !model_->choices() || model_->choices()->load.empty()) return;
    if (step->begun - load_reported_at_ < kInterval) return;
    load_reported_at_ = step->begun;
    std::vector<std::int64_t>& values = step->result.expert_load.values;
    values.assign(model_->choices()->load.size(), 0);
    step->device_load = transfers_->out(std::span(values));
}

void Engine::enqueue_load(const messages::StepPlan& plan, const RunningStep& step) {
    if (!is_root() || !model_->choices() || model_->choices()->load.empty()) return;
    const Choices& choices = *model_->choices();
    device_.ops().count_choices({
        .chosen = choices.experts.data(),
        .layer_stride = choices.tokens_max * choices.per_token,
        .num_layers = choices.num_layers,
        .per_token = choices.per_token,
        .num_tokens = std::ssize(plan.tokens.values),
        .num_experts = choices.num_experts,
        .counts = choices.load.data(),
        .y = step.device_load,
        .stream = device_.stream(),
    });
}

// Layers without experts have counted their zeros as expert 0.
void Engine::finish_load(RunningStep* step) const {
    std::vector<std::int64_t>& values = step->result.expert_load.values;
    if (values.empty()) return;
    const auto num = static_cast<std::ptrdiff_t>(routes()->num_experts);
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
        const LayerBlocks& blocks = config_.layers[i];
        if (std::ranges::find(blocks, BlockKind::kExperts) == blocks.end())
            std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i) * num, num, 0);
    }
}

// Computes logits in chunks, so that scoring a long prompt needs no more memory than decodes.
Result<> Engine::compute_in_chunks(RunningStep* step) {
    std::span<const LogitRow> left = step->planned.logit_rows();
    while (!left.empty()) {
        const auto num = std::min(left.size(), static_cast<std::size_t>(sizes_.logit_rows_max));
        const std::span<const LogitRow> chunk = left.first(num);
        const auto num_rows = static_cast<std::int64_t>(num);
        step->token_rows.clear();
        for (const LogitRow& row : chunk) step->token_rows.push_back(row.token_row);
        const std::int32_t* const there = transfers_->in(step->token_rows);
        transfers_->send();
        model_->logits(there, num_rows, weights_->live());
        ASSIGN_OR_RETURN(
            const std::vector<TokenId> ids,
            sampler_->run(model_->logits_of(num_rows), chunk, slots_, &step->result)
        );
        step->ids.insert(step->ids.end(), ids.begin(), ids.end());
        left = left.subspan(num);
    }
    transfers_->end_turn();
    return Ok{};
}

Result<> Engine::complete_older() {
    return num_under_way_ == 0 ? Result<>(Ok{}) : complete(&oldest());
}

// Steps are completed in order.
Result<> Engine::complete(RunningStep* step) {
    if (step->is_complete) return Ok{};
    transfers_->finish_turn();  // also ends a step without logits before its result is sent
    step->is_complete = true;
    RETURN_IF_ERROR(tensor_communicator().check());
    finish_load(step);
    if (step->call) {
        step->call->finish(&step->result);
        const std::span<const TokenId> ids = step->call->ids();
        step->ids.assign(ids.begin(), ids.end());
        step->call.reset();
    }
    if (is_root()) step->result.not_finite = step->planned.not_finite_rows(step->ids, step->marks);
    replay_drafts(*step);
    record_sampled(*step);
    return Ok{};
}

void Engine::replay_drafts(const RunningStep& step) {
    if (!states_ || !step.planned.has_drafts()) return;
    const StepBatch replay = states_->accept(step.planned.num_right(step.ids));
    if (!replay.tokens.empty()) model_->replay(replay, weights_->live());
}

// Stores the sampled tokens on every rank: the next step's rows may use them.
void Engine::record_sampled(const RunningStep& step) {
    const std::span<const LogitRow> rows = step.planned.logit_rows();
    CHECK(step.ids.size() == rows.size());
    const std::vector<bool> counts = step.planned.counting_rows(step.ids);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const LogitRow& row = rows[i];
        if (row.kind != LogitRow::Kind::kSample || !counts[i]) continue;
        if (std::ranges::find(step.set_up_anew, row.slot) != step.set_up_anew.end()) continue;
        slots_[static_cast<std::size_t>(raw(row.slot))]->record_sampled(step.ids[i]);
    }
}

Result<std::vector<float>> Engine::read_logits(std::span<const std::int32_t> token_rows) {
    CHECK(model_.has_value() && num_under_way_ == 0);
    const auto num_rows = static_cast<std::int64_t>(token_rows.size());
    const std::int32_t* const there = transfers_->in(token_rows);
    transfers_->send();
    model_->logits(there, num_rows, weights_->live());
    const auto& [part, logits] = model_->logits_of(num_rows);
    RETURN_IF_ERROR(tensor_communicator().gather_columns(part, logits));
    if (!is_root()) return std::vector<float>{};
    std::vector<float> host(static_cast<std::size_t>(logits.rows * logits.cols));
    device_.read(host.data(), logits.data, static_cast<std::int64_t>(host.size() * sizeof(float)));
    transfers_->wait();
    RETURN_IF_ERROR(tensor_communicator().check());
    return host;
}

}  // namespace pitstop::tp_worker
