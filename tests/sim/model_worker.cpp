#include "tests/sim/model_worker.h"

#include "messages/version_digest.h"
#include "tests/sim/pusher.h"
#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace pitstop::sim {
namespace {

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

std::string version_digest_of(WeightsId weights, int tp) {
    std::vector<std::vector<messages::PartDigest>> parts;
    std::vector<messages::RankParts> ranks;
    for (int rank = 0; rank < tp; ++rank)
        parts.push_back(parts_of(weights, static_cast<Rank>(rank), tp));
    for (int rank = 0; rank < tp; ++rank)
        ranks.push_back({static_cast<Rank>(rank), parts[static_cast<std::size_t>(rank)]});
    return to_hex(messages::version_digest(ranks)->digest);
}

ModelWorker::ModelWorker(
    int replica, Rank rank, const ModelShape& shape, int num_replicas, Oracle& oracle
)
    : replica_(replica),
      rank_(rank),
      shape_(shape),
      num_replicas_(num_replicas),
      oracle_(oracle),
      states_(shape.num_slots, shape.num_checkpoints.value_or(0), shape.page_size) {
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
    if (shape_.num_checkpoints) {
        hello.state_bytes = 64;
        hello.num_checkpoints = *shape_.num_checkpoints;
    }
    if (shape_.routes) {
        hello.routes = shape_.routes;
        hello.dense_layers = RouteBook::dense_layers();
    }
    hello.drafted_max = messages::kDraftedMax;
    hello.adapter_rank_max = 8;
    hello.update_mode = shape_.lends ? "lend" : "staged";
    hello.digests = parts(live_);
    return hello;
}

void ModelWorker::expect(const messages::StepPlan& plan) {
    if (raw(rank_) != 0) return;
    if (const auto problem = states_.expect(plan)) fail(*problem);
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
    for (const messages::PlanRow& row : plan.rows) std::ignore = weights_of_row(row);
    if (raw(rank_) != 0 || oracle_.problem()) return result;

    states_.begin_step(plan);
    for (const messages::RequestSetup& setup : plan.setups) {
        if (raw(setup.slot) < 0 || raw(setup.slot) >= shape_.num_slots) {
            fail(fmt::format("slot {}", raw(setup.slot)));
            return result;
        }
        slots_[static_cast<std::size_t>(raw(setup.slot))] = {setup, {}, true};
        oracle_.begins(setup.key);
    }
    PlacedRow placed{.plan = plan};
    for (const messages::PlanRow& row : plan.rows) {
        placed.row = row;
        placed.weights = weights_of_row(row);
        run_row(placed, result);
        if (oracle_.problem()) return result;
        placed.first_token += static_cast<std::size_t>(row.num_new);
        placed.first_page += static_cast<std::size_t>(row.num_pages);
        placed.first_target += static_cast<std::size_t>(row.num_scored);
        placed.first_brought += static_cast<std::size_t>(row.num_brought);
        ++placed.index;
    }
    return result;
}

WeightsId ModelWorker::weights_of_row(const messages::PlanRow& row) {
    if (!row.adapter) return live_;
    const AdapterBook::MaybeId successor = oracle_.adapters().successor(*row.adapter);
    if (successor && (adapters_.contains(*successor) || evicted_.contains(*successor))) {
        fail(fmt::format(
            "a row of adapter {}, whose requests all have {} now",
            static_cast<std::uint64_t>(*row.adapter),
            static_cast<std::uint64_t>(*successor)
        ));
    }
    const auto place = adapters_.find(*row.adapter);
    if (place != adapters_.end()) return AdapterBook::together(live_, place->second);
    fail(fmt::format(
        "a row of adapter {}, which is not in memory", static_cast<std::uint64_t>(*row.adapter)
    ));
    return live_;
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
    Context context{.kv = {raw(epoch_), raw(epoch_)}, .oldest_adapter = row.adapter};
    if (auto problem = read_context(placed, key, context)) return fail(*problem);
    if (shape_.num_checkpoints) {
        if (auto problem = read_state(placed, key, context)) return fail(*problem);
    }
    if (auto problem = write_context(placed, slot, context, result)) return fail(*problem);

    score(placed, key, context, result);
    if (end == slot.setup.prompt_len) oracle_.read_prompt(key, context.kv);
    if (row.output_index) {
        sample(placed, 0, slot, context, result);
        if (auto problem = verify_drafts(placed, slot, context, result))
            return fail(fmt::format("request {}: {}", raw(key), *problem));
    }
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
        result.scores.logprobs.values.push_back(
            score_at(target, position, placed.weights, context.kv)
        );
        result.scores.ranks.values.push_back(raw(target) + 1);
    }
}

void ModelWorker::sample(
    const PlacedRow& placed,
    std::int64_t index,
    Slot& slot,
    Context& context,
    messages::StepResult& result
) {
    const messages::PlanRow& row = placed.row;
    const RequestKey key = slot.setup.key;
    const std::int64_t output_index = *row.output_index + index;
    const std::int64_t end = row.begin + row.num_new - row.num_drafted.value_or(0) + index;
    if (end != slot.setup.prompt_len + output_index) {
        return fail(fmt::format(
            "request {}: output {} is sampled at position {}", raw(key), output_index, end
        ));
    }
    const std::uint64_t seed = *slot.setup.sampling.seed;
    const bool may_stop = output_index >= slot.setup.sampling.min_new_tokens;
    const bool is_last_finite =
        finite_at(context.last_token, live_) == Finite::kAll && context.is_finite;
    slot.last = token_at(seed, output_index, placed.weights, may_stop, slot.setup.stop_ids);
    if (!is_last_finite) {
        slot.last = kNoToken;
    } else if (!are_scores_finite(seed, output_index, live_)) {
        slot.last = kNoToken;
        if (!context.bad) context.bad = {placed.index, end - 1, messages::NotFiniteKind::kScores};
    }
    oracle_.sampled(key, output_index, slot.last, context.kv);
    oracle_.adapters().sampled(key, output_index, row.adapter, context.oldest_adapter);
    if (slot.last == kNoToken) result.undrawn.push_back(std::ssize(result.sampled.values));
    result.sampled.values.push_back(slot.last == kNoToken ? TokenId{} : slot.last);
    result.logprobs.values.push_back(logprob_at(seed, output_index, placed.weights));
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
        if (shape_.routes) {
            context.brought = RouteBook::with_brought(
                context.brought, oracle_.request(key), *shape_.routes, position
            );
        }
        if (entry->brought != context.brought) {
            return fmt::format(
                "request {}: position {} attends to KV of other routes (P9)", raw(key), position
            );
        }
        if (auto problem =
                oracle_.adapters().problem_of_kv(placed.row.adapter, entry->adapter, is_first_row))
            return fmt::format("request {}: {}", raw(key), *problem);
        context.oldest_adapter = std::min(context.oldest_adapter, entry->adapter);
        context.kv.min = std::min(context.kv.min, raw(entry->epoch));
        context.kv.max = std::max(context.kv.max, raw(entry->epoch));
        context.is_finite = context.is_finite && entry->is_finite;
        // Two steps may be in progress: the earlier one's result was unknown when this one was
        // planned.
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

std::optional<std::string> ModelWorker::read_state(
    const PlacedRow& placed, RequestKey key, Context& context
) {
    std::vector<Epoch> epochs;
    for (std::int64_t position = 0; position < placed.row.begin; ++position)
        epochs.push_back(entry_of(placed, position)->epoch);
    if (auto problem = states_.begin_row(placed.row, {.chain = context.chain, .epochs = epochs}))
        return fmt::format("request {}: step {}: {}", raw(key), raw(placed.plan.step), *problem);
    const bool is_finite = states_.is_finite(placed.row.slot);
    context.is_finite = context.is_finite && is_finite;
    context.is_lent = context.is_lent || (placed.row.state_from && !is_finite);
    return std::nullopt;
}

std::optional<std::string> ModelWorker::write_context(
    const PlacedRow& placed, const Slot& slot, Context& context, messages::StepResult& result
) {
    const RequestKey key = slot.setup.key;
    const messages::PlanRow& row = placed.row;
    const std::int64_t end = row.begin + row.num_new - row.num_drafted.value_or(0);
    const std::int64_t first_logits =
        end - std::max<std::int64_t>(row.num_scored, row.output_index ? 1 : 0);
    for (std::int64_t position = row.begin; position < end; ++position) {
        const TokenId token = row.takes_sampled ? slot.last : planned_token(placed, position);
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
        if (auto problem = begin_routes(placed, key, position, context))
            return fmt::format("request {}: {}", raw(key), *problem);
        if (auto problem = write_token(placed, token, position, position >= first_logits, context))
            return fmt::format("request {}: {}", raw(key), *problem);
        end_routes(placed, position, context, result);
        oracle_.routes().computed(key, position, epoch_);
        advance_state(row, context);
    }
    return std::nullopt;
}

TokenId ModelWorker::planned_token(const PlacedRow& placed, std::int64_t position) {
    const auto index = static_cast<std::size_t>(position - placed.row.begin);
    return placed.plan.tokens.values[placed.first_token + index];
}

std::optional<std::string> ModelWorker::write_token(
    const PlacedRow& placed, TokenId token, std::int64_t position, bool has_logits, Context& context
) {
    context.chain = hash_of(context.chain, raw(token));
    Entry* entry = entry_of(placed, position);
    if (entry == nullptr) return "a page out of range";
    const Finite finite = finite_at(token, live_);
    context.is_finite = context.is_finite && finite != Finite::kNothing;
    *entry = {
        position,
        token,
        context.chain,
        epoch_,
        placed.plan.step,
        context.is_finite,
        placed.row.adapter,
        context.brought};
    context.last_token = token;
    using Kind = messages::NotFiniteKind;
    if (context.bad || (context.is_finite && (finite == Finite::kAll || !has_logits)))
        return std::nullopt;
    context.bad = {placed.index, position, has_logits ? Kind::kLogits : Kind::kState};
    return std::nullopt;
}

void ModelWorker::advance_state(const messages::PlanRow& row, const Context& context) {
    if (shape_.num_checkpoints) states_.advance(row, context.chain, epoch_, context.is_finite);
}

// Samples after each draft. After a wrong draft the row's results do not count, and may have any
// value. The draft's KV is written in any case, and no state includes it.
std::optional<std::string> ModelWorker::verify_drafts(
    const PlacedRow& placed, Slot& slot, Context& context, messages::StepResult& result
) {
    const messages::PlanRow& row = placed.row;
    const std::int64_t num_drafted = row.num_drafted.value_or(0);
    bool counts = true;
    for (std::int64_t i = 1; i <= num_drafted; ++i) {
        const std::int64_t position = row.begin + row.num_new - num_drafted + i - 1;
        const TokenId draft = planned_token(placed, position);
        counts = counts && draft == slot.last;
        Context aside = context;
        Context& own = counts ? context : aside;
        if (auto problem = begin_routes(placed, slot.setup.key, position, own)) return problem;
        if (auto problem = write_token(placed, draft, position, /*has_logits=*/true, own))
            return problem;
        end_routes(placed, position, own, result);
        if (counts) {
            oracle_.routes().computed(slot.setup.key, position, epoch_);
            advance_state(row, context);
            sample(placed, i, slot, context, result);
        } else {
            context.chain = aside.chain;
            const auto void_token = static_cast<TokenId>(hash_of(raw(draft), position) % kVocab);
            result.sampled.values.push_back(void_token);
            result.logprobs.values.push_back(0.f);
            result.ranks.values.push_back(1);
        }
    }
    return std::nullopt;
}

}  // namespace pitstop::sim
