#include "tests/scheduler_proc/fake_workers.h"

#include "base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {
namespace {

// Extends a prefix's hash by a token; the weights have no influence.
std::uint64_t extended(std::uint64_t prefix, TokenId token) {
    return mix64(prefix ^ (static_cast<std::uint64_t>(raw(token)) + 0x100000001b3u));
}

std::uint64_t number_of(messages::AdapterId adapter) { return static_cast<std::uint64_t>(adapter); }

}  // namespace

FakeWorkers::FakeWorkers(FakeModel model)
    : model_(std::move(model)),
      states_(model_.state_bytes > 0 ? model_.num_slots : 0, model_.num_checkpoints) {
    epoch_ = model_.epoch;
    kv_.resize(static_cast<std::size_t>(model_.num_pages * model_.page_size));
    slots_.resize(static_cast<std::size_t>(model_.num_slots));
    stage_failures.resize(static_cast<std::size_t>(model_.tp));
    memory_failures.resize(static_cast<std::size_t>(model_.tp));
    released_.resize(static_cast<std::size_t>(model_.tp));
    is_silent.assign(static_cast<std::size_t>(model_.tp), false);
    never_ends.assign(static_cast<std::size_t>(model_.tp), false);
}

std::vector<messages::PartDigest> FakeWorkers::digests(std::uint64_t weights, Rank rank) const {
    return {{
        .name = "weight",
        .shape = {model_.tp, 4},
        .part = raw(rank),
        .parts = model_.tp,
        .lane0 = weights + 1,
        .lane1 = weights * 2,
    }};
}

std::vector<FromWorker> FakeWorkers::hellos() const {
    std::vector<FromWorker> all;
    for (int rank = 0; rank < model_.tp; ++rank) {
        messages::WorkerHello hello;
        hello.rank = static_cast<Rank>(rank);
        hello.tp = model_.tp;
        hello.pid = 1000 + rank;
        hello.model_type = "fake";
        hello.context_len = model_.context_len;
        hello.vocab_size = model_.vocab_size;
        hello.num_pages = model_.num_pages;
        hello.page_size = model_.page_size;
        hello.num_slots = model_.num_slots;
        hello.eos_ids = model_.eos_ids;
        hello.digests = digests(model_.weights, hello.rank);
        hello.compute = "bf16";
        hello.weight_bytes = 1000;
        hello.kv_bytes = 1000;
        hello.graph_bytes_max = 500 + rank;
        hello.has_weights = model_.has_weights;
        hello.routes = model_.routes;
        hello.adapter_rank_max = model_.adapter_rank_max;
        hello.state_bytes = model_.state_bytes;
        hello.num_checkpoints = model_.num_checkpoints;
        hello.drafted_max = model_.drafted_max;
        hello.update_mode = model_.lends ? "lend" : "staged";
        all.emplace_back(std::move(hello));
    }
    return all;
}

std::size_t FakeWorkers::num_plans_queued() const {
    return static_cast<std::size_t>(std::ranges::count_if(queue_, [](const ToWorkers& message) {
        return std::holds_alternative<messages::StepPlan>(message);
    }));
}

// A plan must write only to pages that no other request has while earlier plans are queued: a real
// worker might still read them.
void FakeWorkers::check_pages(const messages::StepPlan& plan) {
    std::map<PageId, SlotId> in_use;
    for (const ToWorkers& message : queue_) {
        const auto* earlier = std::get_if<messages::StepPlan>(&message);
        if (earlier == nullptr) continue;
        auto page = earlier->pages.values.begin();
        for (const messages::PlanRow& row : earlier->rows) {
            for (std::int64_t i = 0; i < row.num_pages; ++i) in_use[*page++] = row.slot;
        }
    }
    std::map<PageId, SlotId> written;
    auto page = plan.pages.values.begin();
    for (const messages::PlanRow& row : plan.rows) {
        for (std::int64_t i = 0; i < row.num_pages; ++i, ++page) {
            if (i < row.begin / model_.page_size) continue;
            const auto other = in_use.find(*page);
            if (other != in_use.end() && other->second != row.slot)
                problems_.push_back(fmt::format(
                    "step {} writes page {} while a step in flight uses it",
                    raw(plan.step),
                    raw(*page)
                ));
            if (!written.emplace(*page, row.slot).second)
                problems_.push_back(
                    fmt::format("step {} writes page {} twice", raw(plan.step), raw(*page))
                );
        }
    }
    page = plan.pages.values.begin();
    for (const messages::PlanRow& row : plan.rows) {
        for (std::int64_t i = 0; i < row.num_pages; ++i, ++page) {
            const auto other = written.find(*page);
            if (other != written.end() && other->second != row.slot)
                problems_.push_back(fmt::format(
                    "step {} reads page {} in which another row writes", raw(plan.step), raw(*page)
                ));
        }
    }
}

void FakeWorkers::receive(ToWorkers message) {
    if (const auto* plan = std::get_if<messages::StepPlan>(&message)) {
        if (const auto problem = messages::invalid(*plan)) problems_.push_back(*problem);
        check_pages(*plan);
        if (const auto problem = states_.receive(*plan)) problems_.push_back(*problem);
        plans_.push_back(*plan);
    }
    queue_.push_back(std::move(message));
}

void FakeWorkers::fail(const messages::StepPlan& plan, const std::string& what) {
    problems_.push_back(fmt::format("step {}: {}", raw(plan.step), what));
}

messages::StepResult FakeWorkers::run(const messages::StepPlan& plan) {
    if (plan.epoch != epoch_)
        fail(plan, fmt::format("epoch {}, live is {}", raw(plan.epoch), raw(epoch_)));
    for (const auto& tags : released_) {
        if (!tags.empty())
            fail(plan, fmt::format("runs while {} is released", name_of(*tags.begin())));
    }
    messages::StepResult result;
    result.step = plan.step;
    result.epoch = epoch_;
    states_.begin_step(plan);
    for (const messages::RequestSetup& setup : plan.setups) {
        slots_.at(static_cast<std::size_t>(raw(setup.slot))) = {.setup = setup};
    }
    PlacedRow placed{.plan = plan};
    for (const messages::PlanRow& row : plan.rows) {
        placed.row = row;
        if (!slots_.at(static_cast<std::size_t>(raw(row.slot))).setup) {
            fail(plan, "a slot that was never set up");
            continue;
        }
        run_row(placed, result);
        num_tokens_run_ += row.num_new;
        placed.first_token += static_cast<std::size_t>(row.num_new);
        placed.first_page += static_cast<std::size_t>(row.num_pages);
        placed.first_target += static_cast<std::size_t>(row.num_scored);
        ++placed.index;
    }
    return result;
}

void FakeWorkers::run_row(const PlacedRow& placed, messages::StepResult& result) {
    using Kind = messages::NotFiniteKind;
    const messages::PlanRow& row = placed.row;
    Slot& slot = slots_.at(static_cast<std::size_t>(raw(row.slot)));
    if (row.adapter && !adapters_.contains(*row.adapter))
        fail(placed.plan, fmt::format("adapter {} is not resident", number_of(*row.adapter)));
    const FakeModel model = model_.adapted(origin_of(row.adapter));
    if (slot.adapters.empty()) {
        slot.adapters.emplace_back(0, row.adapter);
    } else if (slot.adapters.back().second != row.adapter) {
        slot.adapters.emplace_back(row.begin, row.adapter);
    }
    Context context;
    read_context(placed, context);
    read_state(placed, context);
    const auto is_bad = [&] {
        return std::ranges::find(context.tokens, model_.overflowing) != context.tokens.end();
    };
    std::optional<messages::NotFiniteRow> bad;
    bool counts = true;  // false after the first draft that was not sampled
    TokenId latest{};    // the row's latest output
    const TokenId taken = slot.sampled;
    const std::int64_t first_scored = row.begin + row.num_new - row.num_scored;
    const std::int64_t first_sampled = row.begin + row.num_new - row.num_sampled();
    for (std::int64_t i = 0; i < row.num_new; ++i) {
        const std::int64_t position = row.begin + i;
        const TokenId given =
            placed.plan.tokens.values[placed.first_token + static_cast<std::size_t>(i)];
        const TokenId token = row.takes_sampled ? taken : given;
        if (position > first_sampled) counts = counts && token == latest;
        context.append(token, epoch_, row.adapter);
        if (counts) states_.advance(row, {position + 1, context.prefix, context.read});
        entry_of(placed, position) = {
            .token = token,
            .position = position,
            .prefix = context.prefix,
            .epoch = epoch_,
        };
        if (position >= row.begin + row.num_new - row.num_routed) {
            const std::vector<std::uint8_t> routes = fake_routes(model, context.tokens);
            result.routes.values.insert(result.routes.values.end(), routes.begin(), routes.end());
        }
        const bool samples = position >= first_sampled;
        if (!bad && counts && is_bad()) {
            bad = {placed.index, position, Kind::kState};
            if (samples || position >= first_scored) bad->kind = Kind::kLogits;
        }
        if (position >= first_scored) {
            const auto target_index = static_cast<std::size_t>(position - first_scored);
            const TokenId target = placed.plan.targets.values[placed.first_target + target_index];
            messages::StepScores& scores = result.scores;
            scores.logprobs.values.push_back(fake_logprob(model, context.tokens, target));
            scores.ranks.values.push_back(fake_rank(context.tokens, target));
            add_alternatives(model, *slot.setup, context.tokens, scores);
        }
        // The context of a request without output ends with the prompt.
        if (position + 1 == slot.setup->prompt_len) kv_read_[{slot.setup->key, 0}] = context.read;
        if (!samples) continue;
        latest = sample(placed, position - first_sampled, model, context, result);
        const TokenId drawn = is_bad() ? kNoToken : latest;
        if (drawn == kNoToken) {
            result.sampled.values.back() = TokenId{};
            result.undrawn.push_back(std::ssize(result.sampled.values) - 1);
        }
        if (counts) slot.sampled = drawn;
        if (!bad && counts && drawn == kNoToken) bad = {placed.index, position, Kind::kLogits};
    }
    if (bad) result.not_finite.push_back(*bad);
}

// Samples output number `index` of the row, as if all drafts in its context were right. Returns it.
TokenId FakeWorkers::sample(
    const PlacedRow& placed,
    std::int64_t index,
    const FakeModel& model,
    const Context& context,
    messages::StepResult& result
) {
    const messages::RequestSetup& setup =
        *slots_.at(static_cast<std::size_t>(raw(placed.row.slot))).setup;
    const std::int64_t output_index = *placed.row.output_index + index;
    if (std::ssize(context.tokens) != setup.prompt_len + output_index) {
        fail(
            placed.plan,
            fmt::format("output {} after {} tokens", output_index, context.tokens.size())
        );
    }
    const TokenId token =
        fake_next_token(model, context.tokens, setup.sampling, setup.stop_ids, output_index);
    kv_read_[{setup.key, output_index}] = context.read;
    result.sampled.values.push_back(token);
    result.logprobs.values.push_back(fake_logprob(model, context.tokens, token));
    result.ranks.values.push_back(fake_rank(context.tokens, token));
    add_alternatives(model, setup, context.tokens, result);
    if (!setup.logprobs.support) return token;
    // The support has one id more than the token's number, so that some supports are too large.
    messages::DrawSupport support{.num_ids = raw(token) + 1};
    if (support.num_ids <= messages::kSupportMax)
        support.ids.resize(static_cast<std::size_t>(support.num_ids), token);
    result.supports.push_back(std::move(support));
    return token;
}

// The hash covers each token's adapter, as adapters share no KV.
void FakeWorkers::Context::append(
    TokenId token, Epoch epoch, std::optional<messages::AdapterId> adapter
) {
    tokens.push_back(token);
    read.add(epoch);
    if (adapter) prefix = mix64(prefix + number_of(*adapter));
    prefix = extended(prefix, token);
}

FakeWorkers::Entry& FakeWorkers::entry_of(const PlacedRow& placed, std::int64_t position) {
    const std::size_t index =
        placed.first_page + static_cast<std::size_t>(position / model_.page_size);
    const auto page = raw(placed.plan.pages.values[index]);
    return kv_.at(static_cast<std::size_t>(page * model_.page_size + position % model_.page_size));
}

void FakeWorkers::read_context(const PlacedRow& placed, Context& context) {
    const auto& adapters = slots_.at(static_cast<std::size_t>(raw(placed.row.slot))).adapters;
    std::size_t since = 0;
    for (std::int64_t position = 0; position < placed.row.begin; ++position) {
        while (since + 1 < adapters.size() && adapters[since + 1].first <= position) ++since;
        const Entry& old = entry_of(placed, position);
        context.append(old.token, old.epoch, adapters[since].second);
        if (old.position == position && old.prefix == context.prefix) continue;
        fail(
            placed.plan,
            fmt::format("slot {}: position {} holds another prefix", raw(placed.row.slot), position)
        );
    }
}

void FakeWorkers::read_state(const PlacedRow& placed, const Context& context) {
    const FakeState want{placed.row.begin, context.prefix, context.read};
    if (const auto problem = states_.begin_row(placed.row, want)) fail(placed.plan, *problem);
}

template <class Logprobs>
void FakeWorkers::add_alternatives(
    const FakeModel& model,
    const messages::RequestSetup& setup,
    std::span<const TokenId> context,
    Logprobs& logprobs
) {
    for (std::int64_t n = 0; n < setup.logprobs.top; ++n) {
        const TokenId top = fake_top_token(model, context, n);
        logprobs.top_ids.values.push_back(top);
        logprobs.top_logprobs.values.push_back(fake_logprob(model, context, top));
    }
    for (const TokenId id : setup.logprobs.ids)
        logprobs.ids_logprobs.values.push_back(fake_logprob(model, context, id));
}

std::vector<FromWorker> FakeWorkers::run_one() {
    if (queue_.empty()) return {};
    const ToWorkers message = std::move(queue_.front());
    queue_.pop_front();
    return std::visit([&](const auto& order) { return answers_to(order); }, message);
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::StepPlan& plan) {
    std::vector<FromWorker> answers;
    answers.emplace_back(run(plan));
    for (int rank = 1; rank < model_.tp; ++rank) {
        answers.emplace_back(messages::StepResult{
            .step = plan.step, .epoch = epoch_, .rank = static_cast<Rank>(rank)});
    }
    return answers;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerStage& stage) {
    std::vector<FromWorker> answers;
    last_stage_ = stage;
    for (const auto& tags : released_) {
        if (model_.lends && stage.spec.mode == messages::UpdateMode::kStaged &&
            !tags.contains(messages::MemoryTag::kKvCache))
            problems_.emplace_back("a stage beside KV, where only one of them has room");
    }
    if (stage.spec.adapter.empty()) {
        shadow_weights_ = staged_weights.value_or(model_.weights);
    } else {
        staged_adapter_ = stage.update;
        check_beginning(stage);
    }
    for (int i = 0; i < model_.tp; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (is_silent[at]) continue;
        messages::WorkerStaged vote{.update = stage.update};
        vote.outcome.rank = static_cast<Rank>(i);
        vote.outcome.ok = !stage_failures[at];
        vote.outcome.phase =
            vote.outcome.ok ? messages::UpdatePhase::kPrepared : messages::UpdatePhase::kStaging;
        if (stage_failures[at]) {
            vote.outcome.code = ErrorCode::kInvalidArgument;
            vote.outcome.problems = {*stage_failures[at]};
            vote.outcome.num_problems = 1;
        } else {
            vote.digests = digests(staged_weights_of(stage), vote.outcome.rank);
            vote.outcome.bytes = 1000;
            if (!stage.spec.adapter.empty()) vote.adapter_bytes = 1000;
        }
        answers.emplace_back(std::move(vote));
    }
    return answers;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerCommit& commit) {
    std::vector<FromWorker> answers;
    if (std::exchange(staged_adapter_, std::nullopt) == commit.update) {
        adapters_.insert(static_cast<messages::AdapterId>(static_cast<std::uint64_t>(commit.update))
        );
    } else {
        const std::uint64_t old = model_.weights;
        model_.weights = commit.rollback ? retained_weights_ : shadow_weights_;
        retained_weights_ = old;
        epoch_ = commit.epoch;
    }
    for (int rank = 0; rank < model_.tp; ++rank) {
        if (never_ends[static_cast<std::size_t>(rank)]) continue;
        answers.emplace_back(messages::WorkerCommitted{
            .update = commit.update,
            .rank = static_cast<Rank>(rank),
            .epoch = commit.epoch,
            .elapsed_us = 100 + rank,
        });
    }
    return answers;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerDrop& drop) {
    std::vector<FromWorker> answers;
    for (int rank = 0; rank < model_.tp; ++rank) {
        if (never_ends[static_cast<std::size_t>(rank)]) continue;
        answers.emplace_back(messages::WorkerDropped{
            .update = drop.update, .rank = static_cast<Rank>(rank)});
    }
    return answers;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerForget& order) {
    for (const messages::AdapterId adapter : order.adapters) {
        if (adapters_.erase(adapter) + evicted_.erase(adapter) == 0)
            problems_.push_back(fmt::format("adapter {} is not resident", number_of(adapter)));
    }
    return {};
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerMemory& order) {
    std::vector<FromWorker> answers;
    memory_orders_.push_back(order);
    for (int i = 0; i < model_.tp; ++i) {
        if (is_silent[static_cast<std::size_t>(i)]) continue;
        answers.emplace_back(change_memory(order, static_cast<Rank>(i)));
    }
    return answers;
}

messages::WorkerMemoryDone FakeWorkers::change_memory(
    const messages::WorkerMemory& order, Rank rank
) {
    const auto at = static_cast<std::size_t>(raw(rank));
    messages::WorkerMemoryDone done{.call = order.call, .rank = rank};
    if (memory_failures[at]) {
        done.verdict.code = ErrorCode::kResourceExhausted;
        done.verdict.message = *std::exchange(memory_failures[at], std::nullopt);
    } else {
        for (const messages::MemoryTag tag : order.tags) {
            if (order.action == messages::MemoryAction::kRelease) {
                released_[at].insert(tag);
                if (tag == messages::MemoryTag::kKvCache) states_.forget();
            } else {
                released_[at].erase(tag);
            }
        }
    }
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        const bool is_released = released_[at].contains(tag);
        done.tags.push_back({
            .tag = tag,
            .state =
                is_released ? messages::MemoryState::kReleased : messages::MemoryState::kResident,
            .resident_bytes = is_released ? 0 : 1000,
        });
    }
    return done;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerReadTensor& read) {
    std::vector<FromWorker> answers;
    for (int rank = 0; rank < model_.tp; ++rank) {
        answers.emplace_back(messages::WorkerTensor{
            .call = read.call, .rank = static_cast<Rank>(rank), .epoch = epoch_});
    }
    return answers;
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerDigest& order) {
    std::vector<FromWorker> answers;
    for (int i = 0; i < model_.tp; ++i) {
        const auto rank = static_cast<Rank>(i);
        answers.emplace_back(messages::WorkerDigests{
            .call = order.call,
            .rank = rank,
            .epoch = epoch_,
            .digests = digests(model_.weights, rank),
        });
    }
    return answers;
}

EpochRange FakeWorkers::kv_of(RequestKey key, std::int64_t output_index) const {
    const auto found = kv_read_.find({key, output_index});
    return found == kv_read_.end() ? EpochRange{} : found->second;
}

}  // namespace pitstop::scheduler
