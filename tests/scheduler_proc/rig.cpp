#include "tests/scheduler_proc/rig.h"

#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {
namespace {

SchedulerConfig config_of(const FakeModel& model, SchedulerConfig config) {
    config.tp = model.tp;
    config.page_size = model.page_size;
    config.epoch = model.epoch;
    return config;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

std::vector<TokenId> prompt_of(std::int64_t num, std::int64_t first) {
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < num; ++i) {
        const std::uint64_t hash = mix64(static_cast<std::uint64_t>(first * 1000 + i));
        tokens.push_back(
            static_cast<TokenId>(i == 0 ? first : static_cast<std::int64_t>(hash % 900))
        );
    }
    return tokens;
}

Rig::Rig(FakeModel model, SchedulerConfig config)
    : workers(model), scheduler(config_of(model, config)) {
    TurnInput in;
    in.workers = workers.hellos();
    turn(std::move(in));
    EXPECT_TRUE(scheduler.is_ready());
}

messages::TokenizedRequest Rig::make(const Ask& ask) {
    messages::TokenizedRequest request;
    request.key = last_key_ = next(last_key_);
    request.prompt.values = ask.prompt;
    request.sampling = ask.sampling;
    request.sampling.max_new_tokens = ask.max_new_tokens;
    request.logprobs = ask.logprobs;
    request.routed_experts_start = ask.routes_start;
    request.conversation = ask.conversation;
    request.routed_experts.values = ask.brought;
    request.priority = ask.priority;
    request.kv_tolerance = ask.kv_tolerance;
    request.kv_max_lag = ask.kv_max_lag;
    request.client = ask.client;
    request.adapter = ask.adapter;
    if (!ask.draft_ids.empty()) request.draft_ids = ask.draft_ids;
    request.draft_key = ask.draft_key;
    return request;
}

RequestKey Rig::send(const Ask& ask) {
    next_.requests.push_back(make(ask));
    return last_key_;
}

void Rig::control(Control message) { next_.control.push_back(std::move(message)); }

TurnOutput Rig::turn(TurnInput in) {
    append(in.control, next_.control);
    append(in.requests, next_.requests);
    next_ = {};
    in.now = now += tick;
    TurnOutput out = scheduler.turn(std::move(in));
    EXPECT_EQ(scheduler.audit().value_or(""), "");
    for (const ToWorkers& message : out.workers) workers.receive(message);
    for (const std::string& problem : workers.problems()) ADD_FAILURE() << problem;
    append(to_tokenizer, out.tokenizer);
    if (out.batch) take_batch(*out.batch);
    return out;
}

void Rig::take_batch(const messages::TokenBatch& batch) {
    EXPECT_FALSE(batch.starts.empty() && batch.chunks.empty() && batch.drops.empty());
    for (const messages::RequestStart& start : batch.starts) ++received_[start.key].num_starts;
    for (const RequestKey key : batch.drops) ++received_[key].num_drops;
    for (const messages::OutputChunk& chunk : batch.chunks) {
        Received& all = received_[chunk.key];
        EXPECT_EQ(all.num_starts, 1) << "a chunk without a start, or with two";
        EXPECT_FALSE(all.finish) << "a chunk after the last one";
        EXPECT_EQ(all.num_drops, 0) << "a chunk after a drop";
        std::int64_t num_in_spans = 0;
        for (const messages::Span& span : chunk.spans) num_in_spans += span.tokens;
        EXPECT_EQ(num_in_spans, static_cast<std::int64_t>(chunk.tokens.size()));
        if (all.num_chunks == 0) all.first_counts = chunk.counts;
        EXPECT_TRUE(all.num_chunks > 0 || chunk.counts) << "no counts in the first chunk";
        EXPECT_TRUE(!chunk.finish || chunk.counts) << "no counts in the last chunk";
        ++all.num_chunks;
        for (const messages::Span& span : chunk.spans) {
            const EpochRange stated{span.kv_min_epoch, span.kv_max_epoch};
            auto index = static_cast<std::int64_t>(all.tokens.size());
            if (&span != &chunk.spans.front()) continue;
            EXPECT_EQ(stated, workers.kv_of(chunk.key, index)) << "P3: the KV it attended to";
            EXPECT_LE(span.kv_max_epoch, span.epoch);
        }
        append(all.tokens, chunk.tokens);
        append(all.logprobs, chunk.logprobs);
        append(all.ranks, chunk.ranks);
        append(all.top_ids, chunk.top_ids);
        append(all.top_logprobs, chunk.top_logprobs);
        append(all.ids_logprobs, chunk.ids_logprobs);
        append(all.spans, chunk.spans);
        if (chunk.prompt) all.prompt = chunk.prompt;
        if (chunk.routes && all.routes) {
            EXPECT_EQ(chunk.routes->start, all.routes->start + all.routes->num_rows());
        }
        messages::append_routes(all.routes, chunk.routes);
        messages::append_supports(all.supports, chunk.supports);
        if (chunk.counts) all.counts = chunk.counts;
        if (chunk.adapter) all.adapter = chunk.adapter;
        if (chunk.finish) {
            all.finish = chunk.finish;
            EXPECT_EQ(
                chunk.counts->completion_tokens, static_cast<std::int64_t>(all.tokens.size())
            );
            EXPECT_FALSE(scheduler.has_request(chunk.key));
        }
    }
}

bool Rig::step() {
    TurnInput in;
    in.workers = workers.run_one();
    const bool ran = !in.workers.empty();
    turn(std::move(in));
    return ran;
}

void Rig::run(int steps_max) {
    turn();
    for (int i = 0; i < steps_max; ++i) {
        if (workers.is_idle()) return;
        step();
    }
    ADD_FAILURE() << "still running after " << steps_max << " steps";
}

// The rows of routes from token `start` to the last but one; nothing if there are none.
std::optional<messages::Routes> Rig::expected_routes(
    const FakeModel& model, std::span<const TokenId> tokens, std::optional<std::int64_t> start
) {
    if (!start || *start + 1 >= std::ssize(tokens)) return std::nullopt;
    messages::Routes routes{.start = *start, .shape = *model.routes};
    for (std::int64_t i = *start; i + 1 < std::ssize(tokens); ++i) {
        const auto context = tokens.first(static_cast<std::size_t>(i + 1));
        const std::vector<std::uint8_t> row = fake_routes(model, context);
        routes.experts.values.insert(routes.experts.values.end(), row.begin(), row.end());
    }
    return routes;
}

Received Rig::expected(const Ask& ask) const { return expected(workers.model(), ask); }

Received Rig::expected(const FakeModel& model, const Ask& ask) {
    Received want;
    std::vector<TokenId> context = ask.prompt;
    std::vector<TokenId> stop_ids = ask.sampling.stop_token_ids;
    if (!ask.sampling.ignore_eos) append(stop_ids, model.eos_ids);
    const std::int64_t most = std::min(model.context_len, model.num_pages * model.page_size) -
                              static_cast<std::int64_t>(ask.prompt.size());
    const std::int64_t output_max = ask.max_new_tokens.value_or(most);
    if (ask.logprobs.prompt_start) {
        messages::PromptLogprobs prompt;
        prompt.start = std::clamp<std::int64_t>(
            *ask.logprobs.prompt_start, 1, static_cast<std::int64_t>(ask.prompt.size())
        );
        for (auto i = static_cast<std::size_t>(prompt.start); i < ask.prompt.size(); ++i) {
            const auto before = std::span(ask.prompt).first(i);
            prompt.logprobs.push_back(fake_logprob(model, before, ask.prompt[i]));
            prompt.ranks.push_back(fake_rank(before, ask.prompt[i]));
            for (std::int64_t n = 0; n < ask.logprobs.top; ++n) {
                const TokenId top = fake_top_token(model, before, n);
                prompt.top_ids.push_back(top);
                prompt.top_logprobs.push_back(fake_logprob(model, before, top));
            }
            for (const TokenId id : ask.logprobs.ids)
                prompt.ids_logprobs.push_back(fake_logprob(model, before, id));
        }
        want.prompt = prompt;
    }
    want.finish = messages::Finish{.reason = messages::FinishReason::kLength};
    for (std::int64_t index = 0; index < output_max; ++index) {
        const TokenId token = fake_next_token(model, context, ask.sampling, stop_ids, index);
        if (token == kNoToken) {
            want.finish->reason = messages::FinishReason::kError;
            break;
        }
        want.tokens.push_back(token);
        if (ask.logprobs.enabled) {
            want.logprobs.push_back(fake_logprob(model, context, token));
            want.ranks.push_back(fake_rank(context, token));
            for (std::int64_t n = 0; n < ask.logprobs.top; ++n) {
                const TokenId top = fake_top_token(model, context, n);
                want.top_ids.push_back(top);
                want.top_logprobs.push_back(fake_logprob(model, context, top));
            }
            for (const TokenId id : ask.logprobs.ids)
                want.ids_logprobs.push_back(fake_logprob(model, context, id));
        }
        context.push_back(token);
        if (index >= ask.sampling.min_new_tokens &&
            std::ranges::find(stop_ids, token) != stop_ids.end()) {
            want.finish =
                messages::Finish{.reason = messages::FinishReason::kStop, .matched_token = token};
            break;
        }
    }
    want.routes = expected_routes(model, context, ask.routes_start);
    return want;
}

}  // namespace pitstop::scheduler
