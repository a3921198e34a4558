// The world's callers: requests from clients that come and go, and calls at the worst moment.
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

void World::act() {
    // The doors open when every replica has said hello.
    if (!doors_->is_ready()) return;
    switch (random_.between(0, 26)) {
        case 0:
        case 1:
        case 2:
            return end_some();
        case 3: {
            const auto mode = static_cast<messages::PauseMode>(random_.between(0, 3));
            if (mode == messages::PauseMode::kAbort) oracle_.mass_abort_allowed();
            const double max_s = random_.once_in(3) ? 0.01 : 0;
            return call(
                messages::PauseGeneration{.mode = mode, .max_pause_s = max_s},
                random_.once_in(4) ? 5 : 200
            );
        }
        case 4:
        case 5:
            return call(messages::ContinueGeneration{}, 100);
        case 6:
            return call(messages::FlushCache{.wait_idle = random_.once_in(2)}, 100);
        case 7:
            return call(messages::Status{}, 20);
        case 8:
            return call(messages::WeightDigests{}, 1000);
        case 9:
            return call(messages::GetWeights{.name = "norm.weight"}, 1000);
        case 10:
        case 11:
            return start_update(/*is_good=*/!random_.once_in(3));
        case 23:
        case 24:
        case 25:
            return random_.once_in(3) ? start_collecting() : start_push(/*is_dependable=*/false);
        case 26:
            return random_.once_in(3) ? cancel_text() : ask_tokenize();
        case 20:
            return release_some();
        case 21:
            return call(messages::ResumeMemory{.tags = some_tags()}, random_.once_in(4) ? 3 : 100);
        case 22: {
            messages::SetWeightLabel message;
            message.label = fmt::format("label-{}", next_call_);
            message.abort_all = random_.once_in(4);
            if (message.abort_all) oracle_.mass_abort_allowed();
            return call(std::move(message), 100);
        }
        case 12:
            return end_or_undo_update();
        default:
            return submit();
    }
}

// Releases memory under a pause, as trainers do, or at any moment.
void World::release_some() {
    if (random_.once_in(2))
        call(messages::PauseGeneration{.mode = messages::PauseMode::kRetract}, 200);
    call(
        messages::ReleaseMemory{.tags = some_tags(), .keep_weights = random_.once_in(2)},
        random_.once_in(4) ? 3 : 100
    );
}

void World::end_or_undo_update() {
    const std::int64_t kind = random_.between(0, 3);
    const std::int64_t timeout_ms = 300;
    if (kind == 1) return drop_any(timeout_ms);
    if (kind > 1) return commit_any();
    messages::RollbackWeights rollback;
    rollback.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 3));
    if (rollback.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
    call(std::move(rollback), timeout_ms);
}

// No tag means all that the call can change.
std::vector<messages::MemoryTag> World::some_tags() {
    switch (random_.between(0, 3)) {
        case 0:
            return {messages::MemoryTag::kWeights};
        case 1:
            return {messages::MemoryTag::kKvCache};
        case 2:
            return {messages::MemoryTag::kKvCache, messages::MemoryTag::kWeights};
        default:
            return {};
    }
}

void World::submit() {
    messages::Generate request;
    const std::uint64_t number = next_request_++;
    request.rid = fmt::format("r{}", number);
    // Few stems, so that prompts share prefixes.
    const std::int64_t stem = random_.between(0, 2);
    // A prompt of many steps is scored, so that commits fall between two of them.
    const bool is_scored = random_.once_in(4);
    std::int64_t prompt_len = random_.between(1, 30);
    if (is_scored) prompt_len += random_.between(0, 15);
    if (random_.once_in(30)) prompt_len = random_.between(60, 90);
    const std::int64_t own_from = has_prefixes_ ? random_.between(0, prompt_len) : 0;
    request.input_ids.emplace();
    for (std::int64_t i = 0; i < prompt_len; ++i) {
        const std::uint64_t h = i < own_from ? hash_of(stem, i) : hash_of(number, i);
        request.input_ids->push_back(static_cast<TokenId>(2 + h % (kVocab - 2)));
    }
    if (!random_.once_in(10)) request.sampling.max_new_tokens = random_.between(0, 24);
    if (random_.once_in(4))
        request.sampling.min_new_tokens =
            random_.between(0, request.sampling.max_new_tokens.value_or(8));
    request.sampling.ignore_eos = random_.once_in(2);
    if (random_.once_in(5))
        request.sampling.stop_token_ids = {static_cast<TokenId>(random_.between(2, kVocab - 1))};
    request.sampling.seed = random_.next();
    request.logprobs.enabled = is_scored || random_.once_in(3);
    if (is_scored)
        request.logprobs.prompt_start = random_.once_in(2) ? 0 : random_.between(0, prompt_len);
    std::vector<std::string> client = some_client();
    const std::string peer = client.front();
    request.client.assign(client.begin() + 1, client.end());
    request.priority = random_.once_in(6) ? random_.between(-1, 2) : 0;
    request.kv_tolerance =
        static_cast<messages::KvTolerance>(random_.once_in(2) ? 0 : random_.between(0, 2));
    if (request.kv_tolerance == messages::KvTolerance::kMaxLag)
        request.kv_max_lag = random_.between(0, 3);
    if (random_.once_in(2)) request.replica = random_.between(0, num_replicas_ - 1);
    if (random_.once_in(8)) {
        request.text = some_text();
        request.input_ids.reset();
        request.logprobs.prompt_start.reset();
    }
    if (has_adapters_ && !apart_.once_in(3)) request.adapter = some_adapter();
    add_drafts(request);
    add_conversation(request);
    add_routes(request);
    ++report_.num_requests;
    clients_[peer].open[request.rid] = true;
    submitting_ = {.peer = peer, .rid = request.rid};
    say(peer, messages::Door::kData, request);
    submitting_ = {};
}

// The model's output under one of the versions, with some tokens replaced. The draws are separate
// from the world's, so that a seed's other events stay the same.
void World::add_drafts(messages::Generate& request) {
    const std::uint64_t seed = *request.sampling.seed;
    Random apart(hash_of(seed, 11));
    if (apart.once_in(4)) request.draft_key = fmt::format("{}", apart.between(0, 2));
    if (apart.once_in(2)) return;
    std::vector<TokenId> stop_ids = request.sampling.stop_token_ids;
    if (!request.sampling.ignore_eos) stop_ids.push_back(kEos);
    const WeightsId weights = oracle_.weights_at(updates().version().epoch);
    request.draft_ids.emplace();
    for (std::int64_t i = 0; i < 30; ++i) {
        const bool may_stop = i >= request.sampling.min_new_tokens;
        TokenId token = token_at(seed, i, weights, may_stop, stop_ids);
        if (apart.once_in(6)) token = static_cast<TokenId>(apart.between(0, kVocab - 1));
        request.draft_ids->push_back(token);
    }
}

// Routes for some of a prompt's first tokens, often for all of them, and a wish for routes from
// some token on. Prompts that share a prefix bring different routes for it. The draws are separate
// from the world's.
void World::add_routes(messages::Generate& request) const {
    if (!shape_.routes || !request.input_ids) return;
    Random apart(hash_of(*request.sampling.seed, 13));
    const std::int64_t prompt_len = std::ssize(*request.input_ids);
    if (apart.once_in(2)) request.routed_experts_start = apart.between(0, prompt_len);
    if (apart.once_in(2)) return;
    const std::int64_t num = apart.once_in(2) ? prompt_len : apart.between(1, prompt_len);
    request.routed_experts.emplace();
    request.routed_experts->shape = *shape_.routes;
    for (std::int64_t i = 0; i < num; ++i) {
        const RouteBook::Row row = RouteBook::row_of(*shape_.routes, apart.next());
        std::vector<std::uint8_t>& all = request.routed_experts->experts.values;
        all.insert(all.end(), row.begin(), row.end());
    }
}

// Requests of one client that name the same conversation hold each other's pages, whatever they
// tolerate.
void World::add_conversation(messages::Generate& request) {
    Random apart(hash_of(*request.sampling.seed, 12));
    if (apart.once_in(2)) return;
    request.turn.emplace();
    request.turn->conversation = fmt::format("c{}", apart.between(0, 3));
    request.turn->opens = true;
}

// Sends prompts that were not finite under one version again under another version. Whatever
// prefixes these requests tolerate, no KV of the first version is used.
void World::submit_again() {
    for (const RequestKey key : std::vector<RequestKey>(oracle_.not_finite().ended())) {
        const messages::TokenizedRequest& before = oracle_.request(key);
        messages::Generate request;
        request.rid = fmt::format("again{}", next_request_++);
        request.input_ids = before.prompt.values;
        request.sampling.max_new_tokens = 3;
        request.sampling.seed = random_.next();
        request.kv_tolerance = messages::KvTolerance::kKeep;
        clients_["again"].open[request.rid] = true;
        submitting_ = {.peer = "again", .rid = request.rid};
        say("again", messages::Door::kData, request);
        submitting_ = {};
        if (++report_.num_not_finite_again % 4 == 0) return;
    }
}

// Clients: one that sends the most, a few others, one that invents names, and some that come once.
std::vector<std::string> World::some_client() {
    switch (random_.between(0, 7)) {
        case 0:
            return {"once-" + std::to_string(next_request_)};
        case 1:
            return {"names", std::to_string(next_request_)};
        case 2:
            return {"unnamed"};
        case 3:
        case 4:
            return {std::string(1, static_cast<char>('a' + random_.between(0, 2)))};
        default:
            return {"most"};
    }
}

// Ends a request or two: a caller's cancel, a stop text, a client that vanishes. At times the
// request has ended already, or its message is still on its way.
void World::end_some() {
    if (placed_.empty()) return;
    const std::int64_t how = random_.between(0, 2);
    messages::TextBatch stopped;
    for (std::int64_t i = random_.between(1, 3); i > 0; --i) {
        const auto back = random_.between(
            1, std::min<std::int64_t>(12, static_cast<std::int64_t>(placed_.size()))
        );
        const Placed& placed = placed_[placed_.size() - static_cast<std::size_t>(back)];
        if (how == 0) {
            messages::Cancel cancel;
            cancel.rids = {placed.rid};
            say(placed.peer, messages::Door::kData, cancel);
        } else if (how == 1) {
            messages::OutputChunk& chunk = stopped.chunks.emplace_back();
            chunk.key = placed.key;
            chunk.finish = messages::Finish{.reason = messages::FinishReason::kStop};
            stopped.stopped.push_back(placed.key);
        } else if (random_.once_in(8)) {
            clients_[placed.peer].is_gone = true;
        }
    }
    if (how == 1) tell_doors(encode(stopped));
}

void World::start_update(bool is_good) {
    messages::UpdateSpec spec;
    spec.source.path = "/sim";
    spec.mode = random_.once_in(3) ? messages::UpdateMode::kDirect : messages::UpdateMode::kStaged;
    spec.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 3));
    spec.label = fmt::format("w{}", next_weights_++);
    if (random_.once_in(6))
        spec.epoch = Epoch{raw(updates().version().epoch) + random_.between(-1, 3)};
    if (spec.epoch && raw(*spec.epoch) < 1) spec.epoch.reset();
    if (spec.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
    const std::int64_t timeout_ms = random_.once_in(5) ? 3 : 300;
    fate_ordered_ = is_good;
    if (spec.mode == messages::UpdateMode::kStaged && random_.once_in(4)) {
        call(messages::StageWeights{.update = spec}, timeout_ms);
    } else {
        call(messages::UpdateWeights{.update = spec}, timeout_ms);
    }
    fate_ordered_.reset();
}

}  // namespace pitstop::sim
