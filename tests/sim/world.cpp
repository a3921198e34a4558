#include "tests/sim/world.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Callers act for this long. Then the faults stop (settle_down()).
constexpr auto kActiveTime = milliseconds(400);
constexpr int kEventsMax = 400'000;

}  // namespace

World::World(std::uint64_t seed, Adapters adapters, Experts experts)
    : random_(seed), has_adapters_(adapters == Adapters::kYes), apart_(seed ^ 0xada97e5) {
    num_replicas_ = random_.once_in(4) ? 2 : 1;
    shape_.tp = static_cast<int>(random_.between(1, 3));
    shape_.page_size = random_.between(1, 6);
    shape_.num_pages = random_.between(70 / shape_.page_size, 240 / shape_.page_size);
    shape_.num_slots = random_.between(2, 8);
    shape_.lends = random_.once_in(4);
    // Drawn separately, so that schedules without state stay the same.
    Random apart(seed ^ 0x57a7e);
    if (apart.once_in(3)) shape_.num_checkpoints = apart.once_in(8) ? 0 : apart.between(1, 12);
    if (experts == Experts::kYes) {
        shape_.routes = messages::RouteShape{
            .layers = 3, .per_token = 2, .num_experts = seed % 2 == 0 ? 7 : 300};
    }
    has_faults_ = random_.once_in(3);
    is_fair_ = !random_.once_in(4);
    has_prefixes_ = !random_.once_in(3);
    now_ = TimePoint(seconds(1));
    spdlog::set_level(spdlog::level::err);  // refusals and vanishing clients are expected
    doors_ = std::make_unique<tokenizer::Doors>(
        tokenizer::Doors::Config{.identity = identity_, .num_replicas = num_replicas_}, tokenizer()
    );
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
        config.trail_tokens = apart.between(1, 16);
        config.spare_tokens = apart.between(1, 32);
        if (apart.once_in(2)) config.drafts_max = apart.between(1, 8);
        config.has_draft_budget = apart.once_in(3);
        config.draft_memory = apart.once_in(2) ? 0 : apart.between(1, 100'000);
        config.fairness = is_fair_ ? Fairness::kFair : Fairness::kFcfs;
        if (has_adapters_) {
            config.adapters_max = apart_.between(2, 4);
            // Other requests overtake a request whose adapter is on its way.
            if (apart_.once_in(2)) config.adapter_memory = kAdapterBytes * apart_.between(1, 2);
        }
        const bool is_in_order = config.adapter_memory == 0;
        if (is_fair_ && !has_prefixes_ && is_in_order)
            replica.fairness = std::make_unique<FairnessBook>(oracle_);
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
    for (TimePoint when = now_; has_adapters_ && when < end;) {
        when += microseconds(apart_.between(50, 12'000));
        at(when, [this] { act_on_adapters(); });
    }
    advance_until(end);
    settle_down();
    report_.problem = oracle_.problem();
    report_.num_tokens = oracle_.num_tokens_checked;
    report_.num_requests_split = oracle_.num_requests_split;
    report_.num_spans_mixed = oracle_.num_spans_mixed;
    report_.num_cache_hits = oracle_.num_cache_hits;
    report_.num_scores_checked = oracle_.num_scores_checked;
    report_.num_scorings_cut = oracle_.num_scorings_cut;
    for (const std::int64_t num : oracle_.not_finite().num_ended()) report_.num_not_finite += num;
    report_.num_sessions = sessions_.num_begun;
    report_.num_buckets = sessions_.num_buckets;
    report_.num_sessions_committed = sessions_.num_committed;
    report_.num_sessions_expired = sessions_.num_expired;
    report_.num_sessions_taken_over = sessions_.num_taken_over;
    report_.num_sessions_mixed = sessions_.num_mixed;
    report_.num_sessions_lacking = sessions_.num_lacking;
    report_.num_unnamed_buckets = sessions_.num_unnamed;
    report_.num_collected = collections_.num_calls;
    report_.num_collections_committed = collections_.num_committed;
    report_.num_collections_lost = collections_.num_lost;
    report_.num_sets_whole = trainers_.num_whole_sets;
    report_.num_sets_mixed = trainers_.num_mixed;
    report_.num_trainers_told = trainers_.num_told;
    const AdapterBook& adapters = oracle_.adapters();
    report_.num_adapter_loads = adapters.num_loads;
    report_.num_adapter_rollbacks = adapters.num_rollbacks;
    report_.num_adapter_parts = adapters.num_parts;
    report_.num_adapter_sparse_parts = adapters.num_sparse_parts;
    report_.num_adapter_sessions = sessions_.num_adapters_begun;
    report_.num_adapter_sessions_committed = sessions_.num_adapters_committed;
    report_.num_adapter_sessions_expired = sessions_.num_adapters_expired;
    report_.num_adapter_tokens = adapters.num_tokens;
    report_.num_adapter_tokens_mixed = adapters.num_over_older;
    report_.num_adapter_evictions = adapters.num_evictions;
    report_.num_adapters_not_evicted = adapters.num_not_evicted;
    report_.num_adapter_restores = adapters.num_restores;
    report_.num_adapters_forgotten = adapters.num_forgotten;
    report_.num_route_rows = oracle_.routes().num_rows_checked;
    report_.num_route_rows_brought = oracle_.routes().num_brought_checked;
    report_.num_routes_mixed = oracle_.routes().num_versions_mixed;
    for (const Replica& replica : replicas_) {
        const messages::ReplicaStatus status = replica.core->status(now_, CallId{1});
        report_.num_retractions += status.retractions_total;
        if (status.drafts) report_.num_drafted += status.drafts->drafted;
        if (status.drafts) report_.num_drafts_accepted += status.drafts->accepted;
        if (!status.checkpoints) continue;
        report_.num_states_evicted += status.checkpoints->evicted_total;
        report_.num_tokens_replayed += status.checkpoints->replayed_tokens_total;
        report_.num_states_saved += replica.ranks.front().worker->states().num_saved;
        report_.num_states_restored += replica.ranks.front().worker->states().num_restored;
    }
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

}  // namespace pitstop::sim
