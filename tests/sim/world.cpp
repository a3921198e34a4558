#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A schedule is about this long, and its tail may take as long again.
constexpr auto kActiveTime = milliseconds(400);
constexpr auto kSettleTime = seconds(120);
constexpr int kEventsMax = 400'000;

// How far past its deadline an answer may come: the turn that notices it, and a link.
constexpr auto kAnswerSlack = milliseconds(50);

}  // namespace

World::World(std::uint64_t seed) : random_(seed) {
    num_replicas_ = random_.once_in(4) ? 2 : 1;
    shape_.tp = static_cast<int>(random_.between(1, 3));
    shape_.page_size = random_.between(1, 6);
    shape_.num_pages = random_.between(70 / shape_.page_size, 240 / shape_.page_size);
    shape_.num_slots = random_.between(2, 8);
    has_faults_ = random_.once_in(3);
    is_fair_ = !random_.once_in(4);
    has_prefixes_ = !random_.once_in(3);
    now_ = TimePoint(seconds(1));
    coordinator_ = tokenizer::UpdateCoordinator(num_replicas_);
    oracle_.loaded(Epoch{1}, WeightsId{});
    for (int r = 0; r < num_replicas_; ++r) {
        Replica& replica = replicas_.emplace_back();
        scheduler::SchedulerConfig config;
        config.replica = ReplicaId{r};
        config.tp = shape_.tp;
        config.page_size = shape_.page_size;
        config.tokens_per_step_max = random_.between(1, 24);
        config.running_max = random_.between(1, 8);
        config.queue_len_max = random_.once_in(8) ? 4 : 1000;
        config.fairness = is_fair_ ? Fairness::kFair : Fairness::kFcfs;
        if (is_fair_ && !has_prefixes_) replica.fairness = std::make_unique<FairnessBook>(oracle_);
        replica.core = std::make_unique<scheduler::Scheduler>(config);
        for (int k = 0; k < shape_.tp; ++k) {
            Rank& rank = replica.ranks.emplace_back();
            rank.worker = std::make_unique<ModelWorker>(
                r, static_cast<pitstop::Rank>(k), shape_, num_replicas_, oracle_
            );
        }
    }
}

Report World::run() {
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        for (std::size_t k = 0; k < replicas_[r].ranks.size(); ++k)
            answer(r, k, replicas_[r].ranks[k].worker->hello());
    }
    const TimePoint end = now_ + kActiveTime;
    for (TimePoint when = now_ + some(0, 4000); when < end; when += some(50, 6000)) {
        at(when, [this] { act(); });
    }
    advance_until(end);
    settle_down();
    report_.problem = oracle_.problem();
    report_.num_tokens = oracle_.num_tokens_checked;
    report_.num_requests_split = oracle_.num_requests_split;
    report_.num_spans_mixed = oracle_.num_spans_mixed;
    report_.num_cache_hits = oracle_.num_cache_hits;
    report_.num_sessions = sessions_.num_begun;
    report_.num_buckets = sessions_.num_buckets;
    report_.num_sessions_committed = sessions_.num_committed;
    report_.num_sessions_expired = sessions_.num_expired;
    for (const Replica& replica : replicas_)
        report_.num_retractions += replica.core->status(now_, CallId{1}).retractions_total;
    return report_;
}

Duration World::some(std::int64_t low_us, std::int64_t high_us) {
    return microseconds(random_.between(low_us, high_us));
}

void World::at(TimePoint when, Event event) {
    events_.push({std::max(when, now_), next_order_++, std::make_shared<Event>(std::move(event))});
}

void World::deliver(Link& link, Event event) {
    link.last = std::max(link.last, now_ + some(1, random_.once_in(20) ? 8000 : 300));
    at(link.last, std::move(event));
}

void World::advance_until(TimePoint end) {
    while (!oracle_.problem() && !events_.empty() && events_.top().at <= end) {
        const Timed next = events_.top();
        events_.pop();
        now_ = next.at;
        (*next.event)();
        check();
        if (++report_.num_events > kEventsMax) oracle_.fail("the schedule does not come to an end");
    }
    if (!oracle_.problem()) now_ = std::max(now_, end);
}

// ---- the tree ----

void World::make_turn(std::size_t r) {
    if (replicas_[r].is_turn_due || replicas_[r].is_down) return;
    replicas_[r].is_turn_due = true;
    after(some(1, 50), [this, r] { turn(r); });
}

void World::turn(std::size_t r) {
    Replica& replica = replicas_[r];
    replica.is_turn_due = false;
    scheduler::TurnInput in = std::exchange(replica.inbox, {});
    in.now = now_;
    std::vector<messages::TokenizedRequest> arrived;
    if (replica.fairness) arrived = in.requests;
    scheduler::TurnOutput out = replica.core->turn(std::move(in));
    if (replica.fairness) {
        for (const messages::TokenizedRequest& request : arrived) {
            if (replica.core->has_request(request.key)) replica.fairness->arrived(request);
        }
        for (const scheduler::ToWorkers& message : out.workers) {
            if (const auto* plan = std::get_if<messages::StepPlan>(&message))
                replica.fairness->admitted(*plan);
        }
        replica.fairness->retain([&](RequestKey key) { return replica.core->has_request(key); });
    }
    if (auto problem = replica.core->audit())
        oracle_.fail(fmt::format("replica {}: {}", r, *problem));
    route(r, std::move(out));
}

void World::route(std::size_t r, scheduler::TurnOutput out) {
    Replica& replica = replicas_[r];
    if (out.fatal) {
        oracle_.fail(fmt::format("replica {} gave up: {}", r, out.fatal->message));
        replica.is_down = true;
    }
    for (const scheduler::ToWorkers& message : out.workers) {
        for (std::size_t k = 0; k < replica.ranks.size(); ++k) order(r, k, message);
    }
    for (scheduler::ToTokenizer& message : out.tokenizer) {
        deliver(replica.to_tokenizer, [this, r, m = std::move(message)] { hear(r, m); });
    }
    if (out.batch) read_batch(*out.batch);
    if (out.wake_at) at(*out.wake_at, [this, r] { make_turn(r); });
}

void World::read_batch(const messages::TokenBatch& batch) {
    for (const messages::RequestStart& start : batch.starts) oracle_.announced(start.key);
    for (const messages::OutputChunk& chunk : batch.chunks) {
        oracle_.emitted(chunk);
        if (chunk.finish) placed_.erase(chunk.key);
    }
    for (const RequestKey key : batch.drops) oracle_.dropped(key);
}

void World::order(std::size_t r, std::size_t k, const scheduler::ToWorkers& message) {
    deliver(replicas_[r].ranks[k].to, [this, r, k, message] {
        replicas_[r].ranks[k].orders.push_back(message);
        work(r, k);
    });
}

// Takes the rank's next order, if it is free.
void World::work(std::size_t r, std::size_t k) {
    Rank& rank = replicas_[r].ranks[k];
    if (rank.is_busy || rank.is_stuck || rank.orders.empty()) return;
    if (has_faults_ && !stuck_any_ && random_.once_in(1500)) {
        rank.is_stuck = true;
        stuck_any_ = true;
        return;
    }
    const scheduler::ToWorkers order = std::move(rank.orders.front());
    rank.orders.pop_front();
    if (const auto* plan = std::get_if<messages::StepPlan>(&order)) {
        rank.is_busy = true;
        const Duration pass = some(100, random_.once_in(40) ? 20'000 : 800);
        after(pass, [this, r, k, plan = *plan] {
            Rank& busy = replicas_[r].ranks[k];
            busy.is_busy = false;
            if (!oracle_.problem()) answer(r, k, busy.worker->run(plan));
            work(r, k);
        });
        return;
    }
    if (const auto* stage = std::get_if<messages::WorkerStage>(&order)) {
        const ModelWorker::Task task = rank.worker->begin_stage(*stage, fate_of(r, k));
        answer_later(r, k, some(200, random_.once_in(10) ? 400'000 : 8000), task);
    } else if (const auto* fill = std::get_if<messages::WorkerFill>(&order)) {
        // A sender may stall; then the rank gives up by itself.
        const Duration takes = some(100, random_.once_in(10) ? 400'000 : 4000);
        const Duration patience = milliseconds(fill->timeout_ms);
        const bool gives_up = takes > patience;
        const ModelWorker::Task task = rank.worker->begin_fill(
            *fill, gives_up ? ModelWorker::StageFate::kBroken : fate_of(r, k)
        );
        answer_later(r, k, std::min(takes, patience), task);
    } else if (const auto* finish = std::get_if<messages::WorkerFinish>(&order)) {
        answer_later(r, k, some(100, 4000), rank.worker->begin_finish(*finish));
    } else if (const auto* commit = std::get_if<messages::WorkerCommit>(&order)) {
        answer(r, k, rank.worker->commit(*commit));
        ++report_.num_commits;
    } else if (const auto* drop = std::get_if<messages::WorkerDrop>(&order)) {
        answer(r, k, rank.worker->drop(*drop));
        ++report_.num_drops;
    } else if (const auto* memory = std::get_if<messages::WorkerMemory>(&order)) {
        const bool fails = is_active_ && random_.once_in(20);
        rank.is_busy = true;
        after(some(50, random_.once_in(10) ? 30'000 : 2000), [this, r, k, fails, m = *memory] {
            Rank& busy = replicas_[r].ranks[k];
            busy.is_busy = false;
            answer(r, k, busy.worker->change_memory(m, fails));
            work(r, k);
        });
        ++report_.num_releases;
        return;
    } else if (const auto* read = std::get_if<messages::WorkerReadTensor>(&order)) {
        answer(r, k, rank.worker->tensor(*read));
    } else if (const auto* digest = std::get_if<messages::WorkerDigest>(&order)) {
        answer(r, k, rank.worker->digests(digest->call));
    }
    work(r, k);
}

void World::answer(std::size_t r, std::size_t k, scheduler::FromWorker message) {
    const int num_copies = has_faults_ && random_.once_in(60) ? 2 : 1;
    for (int i = 0; i < num_copies; ++i) {
        deliver(replicas_[r].ranks[k].from, [this, r, message] {
            replicas_[r].inbox.workers.push_back(message);
            make_turn(r);
        });
    }
}

void World::answer_later(
    std::size_t r, std::size_t k, Duration takes, const ModelWorker::Task& task
) {
    after(takes, [this, r, k, task] {
        Rank& rank = replicas_[r].ranks[k];
        if (rank.is_stuck || !rank.worker->is_at(task)) return;  // dropped meanwhile
        answer(r, k, rank.worker->finish(task));
    });
}

ModelWorker::StageFate World::fate_of(std::size_t r, std::size_t k) const {
    const bool is_hit = fate_replica_ == static_cast<int>(r) && fate_rank_ == static_cast<int>(k);
    return is_hit ? next_fate_ : ModelWorker::StageFate::kGood;
}

void World::control(std::size_t r, scheduler::Control message) {
    deliver(replicas_[r].control, [this, r, m = std::move(message)] {
        replicas_[r].inbox.control.push_back(m);
        make_turn(r);
    });
}

void World::hear(std::size_t r, scheduler::ToTokenizer message) {
    if (const auto* part = std::get_if<messages::UpdatePart>(&message)) {
        coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
            coordinator_.part(now_, *part, out);
        });
    } else if (const auto* waits = std::get_if<messages::UpdateWaits>(&message)) {
        coordinator_.waits(*waits);
    } else if (const auto* hello = std::get_if<messages::SchedulerHello>(&message)) {
        coordinator_.set_version(
            {.epoch = hello->epoch, .label = hello->label, .digest = hello->digest}
        );
        ++num_hellos_;
    } else if (const auto* status = std::get_if<messages::ReplicaStatus>(&message)) {
        answered(status->call, r);
    } else if (const auto* pause = std::get_if<messages::PausePart>(&message)) {
        answered(pause->call, r);
    } else if (const auto* go_on = std::get_if<messages::ContinuePart>(&message)) {
        answered(go_on->call, r);
    } else if (const auto* flush = std::get_if<messages::FlushPart>(&message)) {
        answered(flush->call, r);
    } else if (const auto* label = std::get_if<messages::LabelPart>(&message)) {
        answered(label->call, r);
    } else if (const auto* memory = std::get_if<messages::MemoryPart>(&message)) {
        if (!memory->has_weights) ++report_.num_discards;
        answered(memory->call, r);
    } else if (const auto* digests = std::get_if<messages::WorkerDigests>(&message)) {
        if (raw(digests->rank) == 0) answered(digests->call, r);
    } else if (const auto* tensor = std::get_if<messages::WorkerTensor>(&message)) {
        if (raw(tensor->rank) == 0) answered(tensor->call, r);
    }
}

// ---- the outside ----

void World::act() {
    // The doors open when every replica has said hello.
    if (num_hellos_ < num_replicas_) return;
    switch (random_.between(0, 24)) {
        case 0:
        case 1:
        case 2:
            return end_some();
        case 3: {
            const auto mode = static_cast<messages::PauseMode>(random_.between(0, 3));
            if (mode == messages::PauseMode::kAbort) oracle_.mass_abort_allowed();
            const double max_s = random_.once_in(3) ? 0.01 : 0;
            return call_all("pause", random_.once_in(4) ? 5 : 200, [&](CallId call) {
                return messages::PauseGeneration{call, 0, mode, max_s};
            });
        }
        case 4:
        case 5:
            return call_all("continue", 100, [](CallId call) {
                return messages::ContinueGeneration{call, 0};
            });
        case 6: {
            const bool waits = random_.once_in(2);
            return call_all("flush", 100, [&](CallId call) {
                return messages::FlushCache{call, 0, waits};
            });
        }
        case 7:
            return call_all("status", 20, [](CallId call) { return messages::Status{call, 0}; });
        case 8:
            return call_all(
                "digest",
                1000,
                [](CallId call) { return messages::WorkerDigest{call}; },
                /*is_exempt=*/true
            );
        case 9:
            return call_all(
                "read",
                1000,
                [](CallId call) {
                    return messages::WorkerReadTensor{call, "norm.weight"};
                },
                /*is_exempt=*/true
            );
        case 10:
        case 11:
            return start_update(/*is_good=*/!random_.once_in(3));
        case 23:
        case 24:
            return start_push(/*is_dependable=*/false);
        case 20: {
            // Under a pause, as trainers do, or at any moment.
            if (random_.once_in(2)) {
                call_all("pause", 200, [](CallId call) {
                    return messages::PauseGeneration{call, 0, messages::PauseMode::kRetract, 0};
                });
            }
            const bool keeps = random_.once_in(2);
            return call_all("release", random_.once_in(4) ? 3 : 100, [&](CallId call) {
                return messages::ReleaseMemory{call, 0, some_tags(), keeps};
            });
        }
        case 21:
            return call_all("resume", random_.once_in(4) ? 3 : 100, [&](CallId call) {
                return messages::ResumeMemory{call, 0, some_tags()};
            });
        case 22: {
            const bool aborts = random_.once_in(4);
            if (aborts) oracle_.mass_abort_allowed();
            return call_all("relabel", 100, [&](CallId call) {
                return messages::SetWeightLabel{
                    call, 0, fmt::format("label-{}", raw(call)), aborts};
            });
        }
        case 12: {
            const std::int64_t kind = random_.between(0, 3);
            const std::int64_t timeout_ms = 300;
            if (kind == 0) {
                messages::RollbackWeights call{
                    CallId{next_call_},
                    timeout_ms,
                    static_cast<messages::KvPolicy>(random_.between(0, 3))};
                if (call.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
                return coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
                    coordinator_.rollback(now_, caller(timeout_ms), call, out);
                });
            }
            return kind == 1 ? drop_any(timeout_ms) : commit_any();
        }
        default:
            return submit();
    }
}

// None stands for all that the call can change.
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
    messages::TokenizedRequest request;
    request.key = RequestKey{next_key_++};
    // Few stems, so that prompts share prefixes.
    const std::int64_t stem = random_.between(0, 2);
    const std::int64_t prompt_len =
        random_.once_in(30) ? random_.between(60, 90) : random_.between(1, 30);
    const std::int64_t own_from = has_prefixes_ ? random_.between(0, prompt_len) : 0;
    for (std::int64_t i = 0; i < prompt_len; ++i) {
        const std::uint64_t h = i < own_from ? hash_of(stem, i) : hash_of(raw(request.key), i);
        request.prompt.values.push_back(static_cast<TokenId>(2 + h % (kVocab - 2)));
    }
    if (!random_.once_in(10)) request.sampling.max_new_tokens = random_.between(0, 24);
    if (random_.once_in(4))
        request.sampling.min_new_tokens =
            random_.between(0, request.sampling.max_new_tokens.value_or(8));
    request.sampling.ignore_eos = random_.once_in(2);
    if (random_.once_in(5))
        request.sampling.stop_token_ids = {static_cast<TokenId>(random_.between(2, kVocab - 1))};
    request.sampling.seed = random_.next();
    request.logprobs.enabled = random_.once_in(2);
    if (request.logprobs.enabled && random_.once_in(3))
        request.logprobs.prompt_start = random_.between(0, prompt_len);
    request.client = some_client();
    request.priority = random_.once_in(6) ? random_.between(-1, 2) : 0;
    request.kv_tolerance =
        static_cast<messages::KvTolerance>(random_.once_in(2) ? 0 : random_.between(0, 2));
    if (request.kv_tolerance == messages::KvTolerance::kMaxLag)
        request.kv_max_lag = random_.between(0, 3);
    const auto r = static_cast<std::size_t>(random_.between(0, num_replicas_ - 1));
    oracle_.submitted(request);
    placed_[request.key] = r;
    ++report_.num_requests;
    deliver(replicas_[r].requests, [this, r, request] {
        replicas_[r].inbox.requests.push_back(request);
        make_turn(r);
    });
}

// One that sends the most, a few others, one that makes up names, and some that come once.
std::vector<std::string> World::some_client() {
    switch (random_.between(0, 7)) {
        case 0:
            return {"once-" + std::to_string(next_key_)};
        case 1:
            return {"names", std::to_string(next_key_)};
        case 2:
            return {};
        case 3:
        case 4:
            return {std::string(1, static_cast<char>('a' + random_.between(0, 2)))};
        default:
            return {"most"};
    }
}

// Ends a request or two: a caller's abort, a stop text, a client that vanished; at times one that
// has ended already, or whose message is still on its way.
void World::end_some() {
    if (next_key_ == 1) return;
    messages::EndRequests ends;
    ends.cause = static_cast<messages::EndCause>(random_.between(0, 2));
    ends.message = "the simulator said so";
    std::optional<std::size_t> r;
    for (std::int64_t i = random_.between(1, 3); i > 0; --i) {
        const auto key = RequestKey{static_cast<std::uint64_t>(random_.between(
            std::max<std::int64_t>(1, static_cast<std::int64_t>(next_key_) - 12),
            static_cast<std::int64_t>(next_key_) - 1
        ))};
        const auto place = placed_.find(key);
        if (place == placed_.end() || (r && *r != place->second)) continue;
        r = place->second;
        ends.keys.push_back(key);
        if (ends.cause == messages::EndCause::kAbort) {
            oracle_.abort_asked(key);
        } else {
            oracle_.silenced(key);
        }
    }
    if (r) control(*r, ends);
}

void World::call_all(
    std::string name,
    std::int64_t timeout_ms,
    const std::function<scheduler::Control(CallId)>& make,
    bool is_exempt
) {
    const CallId id{next_call_++};
    Call& call = calls_[raw(id)];
    call.name = std::move(name);
    call.deadline = now_ + milliseconds(timeout_ms) + kAnswerSlack;
    call.num_answers.assign(replicas_.size(), 0);
    call.is_exempt = is_exempt;
    ++report_.num_calls;
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        scheduler::Control message = make(id);
        std::visit(
            [&](auto& m) {
                if constexpr (requires { m.timeout_ms; }) m.timeout_ms = timeout_ms;
            },
            message
        );
        control(r, std::move(message));
    }
}

void World::answered(CallId id, std::size_t r) {
    const auto call = calls_.find(raw(id));
    if (call == calls_.end())
        return oracle_.fail(fmt::format("an answer to call {}, which nobody made", raw(id)));
    // Workers' answers may come twice when messages do.
    if (++call->second.num_answers[r] > 1 && !call->second.is_exempt) {
        oracle_.fail(fmt::format("replica {} answered {} {} twice", r, call->second.name, raw(id)));
    }
}

tokenizer::UpdateCoordinator::Caller World::caller(std::int64_t timeout_ms, Heard heard) {
    const std::uint64_t id = next_call_++;
    // The worst case: the deadline comes in the stage, and the drop is waited for a little.
    const Duration time =
        milliseconds(timeout_ms) + tokenizer::UpdateCoordinator::kDropGrace + kAnswerSlack;
    update_calls_[id] = {now_ + time, 0, std::move(heard)};
    return {"trainer", CallId{id}};
}

void World::start_update(bool is_good) {
    messages::UpdateSpec spec;
    spec.source.path = "/sim";
    spec.mode = random_.once_in(3) ? messages::UpdateMode::kDirect : messages::UpdateMode::kStaged;
    spec.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 3));
    spec.label = fmt::format("w{}", next_weights_++);
    if (random_.once_in(6))
        spec.epoch = Epoch{raw(coordinator_.version().epoch) + random_.between(-1, 3)};
    if (spec.epoch && raw(*spec.epoch) < 1) spec.epoch.reset();
    if (spec.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
    const std::int64_t timeout_ms = random_.once_in(5) ? 3 : 300;
    const CallId id{next_call_};
    const tokenizer::UpdateCoordinator::Caller who = caller(timeout_ms);
    coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
        if (spec.mode == messages::UpdateMode::kStaged && random_.once_in(4)) {
            coordinator_.stage(now_, who, messages::StageWeights{id, timeout_ms, spec}, out);
        } else {
            coordinator_.update(now_, who, messages::UpdateWeights{id, timeout_ms, spec}, out);
        }
        if (!out.orders.empty()) draw_fate(is_good);  // not refused
    });
}

// What becomes of the next stage or bucket, and on which rank.
void World::draw_fate(bool is_good) {
    // A rank that gets other bytes than the others is found out by them alone.
    const bool has_others = num_replicas_ * shape_.tp > 1;
    next_fate_ = is_good
                     ? ModelWorker::StageFate::kGood
                     : static_cast<ModelWorker::StageFate>(random_.between(1, has_others ? 3 : 2));
    fate_replica_ = static_cast<int>(random_.between(0, num_replicas_ - 1));
    fate_rank_ = static_cast<int>(random_.between(0, shape_.tp - 1));
}

void World::coordinate(const std::function<void(tokenizer::UpdateCoordinator::Out&)>& what) {
    tokenizer::UpdateCoordinator::Out out;
    what(out);
    for (const tokenizer::UpdateCoordinator::Order& order : out.orders) {
        sessions_.ordered(now_, order);
        const auto* drop = std::get_if<messages::UpdateDrop>(&order);
        dropping_ = drop != nullptr ? drop->update : messages::UpdateId{};
        if (drop != nullptr) watch_drop(drop->update);
        std::visit(
            [&](const auto& message) {
                for (std::size_t r = 0; r < replicas_.size(); ++r) control(r, message);
            },
            order
        );
    }
    for (const auto& [who, reply] : out.replies) {
        if (who.call != reply.call) oracle_.fail("an update's answer names another call");
        const auto call = update_calls_.find(raw(who.call));
        if (call == update_calls_.end() || ++call->second.num_answers > 1)
            oracle_.fail("an update was answered twice");
        if (reply.state == messages::UpdateState::kTorn) ++report_.num_torn;
        if (reply.ok == !reply.verdict.is_done())
            oracle_.fail("an update's answer is ok with an error, or not ok without");
        if (call != update_calls_.end() && call->second.heard) call->second.heard(reply);
    }
    if (const auto deadline = coordinator_.next_deadline())
        at(*deadline, [this] { tick_coordinator(); });
}

void World::tick_coordinator() {
    const auto deadline = coordinator_.next_deadline();
    if (!deadline || *deadline > now_) return;
    coordinate([&](tokenizer::UpdateCoordinator::Out& out) { coordinator_.tick(now_, out); });
}

// ---- what must hold ----

void World::check() {
    sessions_.check(now_);
    if (report_.num_events % 64 == 0) check_calls();
}

void World::check_calls() {
    for (const auto& [id, call] : calls_) {
        if (now_ <= call.deadline || (call.is_exempt && stuck_any_)) continue;
        for (std::size_t r = 0; r < replicas_.size(); ++r) {
            if (call.num_answers[r] == 0)
                oracle_.fail(fmt::format(
                    "replica {} did not answer {} {} by its deadline (P5)", r, call.name, id
                ));
        }
    }
    for (const auto& [id, call] : update_calls_) {
        if (now_ > call.deadline && call.num_answers == 0)
            oracle_.fail(fmt::format("update call {} was not answered by its deadline (P5)", id));
    }
}

// Some replica can generate nothing until new weights come.
bool World::needs_update() const {
    return coordinator_.is_torn() || std::ranges::any_of(replicas_, [](const Replica& replica) {
               return !replica.core->has_weights() && replica.core->is_all_resident();
           });
}

SessionBook::Base World::base() const {
    const bool is_whole =
        !coordinator_.is_torn() && std::ranges::all_of(replicas_, [](const Replica& replica) {
            return replica.core->has_weights();
        });
    return {.serving = coordinator_.version().epoch, .is_whole = is_whole};
}

bool World::is_quiet() const {
    return oracle_.unanswered().empty() &&
           std::ranges::all_of(replicas_, [](const Replica& replica) {
               return replica.core->num_open() == 0 && replica.core->num_in_flight() == 0;
           });
}

std::string World::describe() const {
    std::string text = fmt::format("update: {}", name_of(coordinator_.state()));
    for (const Replica& replica : replicas_) {
        const messages::ReplicaStatus status = replica.core->status(now_, CallId{1});
        text += fmt::format(
            "; replica {}: {}, epoch {}, {} waiting, {} running, {} steps in flight, {} of {} "
            "pages free, {} cached",
            raw(status.replica),
            status.state,
            raw(status.epoch),
            status.num_waiting,
            status.num_running,
            status.steps_in_flight,
            status.pages_free,
            status.pages_total,
            status.pages_cached
        );
    }
    return text;
}

// The faults stop; whatever was asked for must come to its end.
void World::settle_down() {
    const TimePoint end = now_ + kSettleTime;
    next_fate_ = ModelWorker::StageFate::kGood;
    is_active_ = false;
    while (!oracle_.problem() && now_ < end) {
        advance_until(now_ + milliseconds(500));
        if (oracle_.problem()) return;
        check_calls();
        if (stuck_any_) {
            // The tree would be torn down by now. What is left: every call was answered in time.
            if (now_ > end - kSettleTime + seconds(15)) return;
            continue;
        }
        if (coordinator_.is_staged()) {
            drop_any(1000);
        } else if (needs_update() && !coordinator_.is_busy()) {
            start_update(/*is_good=*/true);
        }
        call_all("resume", 1000, [](CallId call) { return messages::ResumeMemory{call, 0, {}}; });
        call_all("continue", 1000, [](CallId call) {
            return messages::ContinueGeneration{call, 0};
        });
        advance_until(now_ + milliseconds(500));
        if (is_quiet() && coordinator_.state() == messages::UpdateState::kServing &&
            !needs_update())
            break;
    }
    if (oracle_.problem() || stuck_any_) return;
    if (const auto keys = oracle_.unanswered(); !keys.empty()) {
        return oracle_.fail(fmt::format(
            "{} requests were never answered, the first is {} (P4); {}",
            keys.size(),
            raw(keys.front()),
            describe()
        ));
    }
    if (coordinator_.state() != messages::UpdateState::kServing)
        return oracle_.fail("the update does not come to its end; " + describe());
    push_to_the_end();
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        const messages::ReplicaStatus status = replicas_[r].core->status(now_, CallId{1});
        if (status.pages_free + status.pages_cached != status.pages_total) {
            oracle_.fail(fmt::format(
                "replica {}: {} free and {} cached of {} pages at rest",
                r,
                status.pages_free,
                status.pages_cached,
                status.pages_total
            ));
        }
    }
    check_calls();
}

}  // namespace pitstop::sim
