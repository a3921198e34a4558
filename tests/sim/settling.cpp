// Properties that must hold after every event of the world, and after its faults have stopped.
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kSettleTime = seconds(120);

}  // namespace

void World::check() {
    sessions_.check(now_);
    check_nothing_staged();
    check_last_drop();
    if (report_.num_events % 64 == 0) check_calls();
}

// Every caller is answered in time, whatever is stuck.
void World::check_calls() {
    for (const auto& [id, call] : calls_) {
        if (now_ > call.deadline && call.num_answers == 0 && !clients_[call.peer].is_gone) {
            oracle_.fail(fmt::format("call {} ({}) was not answered in time (P5)", id, call.name));
        }
    }
}

void World::check_clients() {
    for (const auto& [peer, client] : clients_) {
        if (client.is_gone) continue;
        for (const auto& [rid, is_open] : client.open) {
            if (is_open)
                oracle_.fail(fmt::format("client {} heard no end of its {} (P4)", peer, rid));
        }
    }
}

// Status reports must count exactly the requests that ended because a value was not finite.
void World::check_not_finite() {
    std::array<std::int64_t, 3> counted{};
    for (const Replica& replica : replicas_) {
        for (const auto& count : replica.core->status(now_, CallId{1}).not_finite)
            counted.at(static_cast<std::size_t>(count.kind)) += count.requests;
    }
    if (counted != oracle_.not_finite().num_ended())
        oracle_.fail("a status counts other requests that were not finite than have ended so");
}

// The engine serves the version that its callers are told: every rank holds every byte of that
// version (P2, P10). Only an update that writes over the live copy can leave the engine torn (P2).
void World::check_told(const messages::UpdateReply& reply) {
    if (reply.state == messages::UpdateState::kTorn) {
        ++report_.num_torn;
        if (!may_tear_) oracle_.fail("an update that was staged has left the engine torn (P2)");
    }
    if (reply.state != messages::UpdateState::kServing) return;
    ++report_.num_told_serving;
    may_tear_ = false;
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        for (std::size_t k = 0; k < replicas_[r].ranks.size(); ++k) {
            const ModelWorker& rank = *replicas_[r].ranks[k].worker;
            const bool is_whole = rank.epoch() == reply.epoch && !rank.is_torn() &&
                                  sessions_.digest_of_weights(rank.weights()) == reply.digest;
            if (is_whole) continue;
            return oracle_.fail(fmt::format(
                "epoch {} is said to serve, and replica {} rank {} holds {}{} (P2, P10)",
                raw(reply.epoch),
                r,
                k,
                rank.is_torn() ? "half of another after epoch " : "epoch ",
                raw(rank.epoch())
            ));
        }
    }
}

// While a rank is half-written, no replica computes with the earlier version (P2). Replicas that
// have committed the next version may compute with it.
void World::check_whole(std::size_t r, std::size_t k) {
    const Epoch serving = replicas_[r].ranks[k].worker->epoch();
    for (std::size_t other = 0; other < replicas_.size(); ++other) {
        const bool is_torn = std::ranges::any_of(replicas_[other].ranks, [&](const Rank& rank) {
            return rank.worker->is_torn() && rank.worker->epoch() >= serving;
        });
        if (!is_torn) continue;
        return oracle_.fail(fmt::format(
            "replica {} rank {} runs under epoch {} while replica {} is torn (P2)",
            r,
            k,
            raw(serving),
            other
        ));
    }
}

// Some replica can generate nothing until new weights come.
bool World::needs_update() const {
    return updates().is_torn() || std::ranges::any_of(replicas_, [&](const Replica& replica) {
               // No other state counts: KV may merely be lent to a collected update.
               return replica.core->status(now_, CallId{1}).state ==
                      messages::ReplicaState::kAwaitingWeights;
           });
}

SessionBook::Base World::base() const {
    const bool is_whole =
        !updates().is_torn() && std::ranges::all_of(replicas_, [](const Replica& replica) {
            return replica.core->has_weights();
        });
    return {.serving = updates().version().epoch, .is_whole = is_whole};
}

bool World::is_quiet() const {
    return oracle_.unanswered().empty() &&
           std::ranges::all_of(replicas_, [](const Replica& replica) {
               return replica.core->num_open() == 0 && replica.core->num_in_flight() == 0;
           });
}

std::string World::describe() const {
    std::string text = fmt::format("update: {}", name_of(updates().state()));
    for (const Replica& replica : replicas_) {
        const messages::ReplicaStatus status = replica.core->status(now_, CallId{1});
        text += fmt::format(
            "; replica {}: {}, epoch {}, {} waiting, {} running, {} steps in flight, {} of {} "
            "pages free, {} cached",
            raw(status.replica),
            name_of(status.state),
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

// The faults stop; every call and request must come to its end.
void World::settle_down() {
    const TimePoint end = now_ + kSettleTime;
    next_fate_ = ModelWorker::StageFate::kGood;
    is_active_ = false;
    while (!oracle_.problem() && now_ < end) {
        advance_until(now_ + milliseconds(500));
        if (oracle_.problem()) return;
        check_calls();
        if (stuck_any_) {
            // The tree would be torn down by now. One check remains: every call was answered in
            // time.
            if (now_ > end - kSettleTime + seconds(15)) return;
            continue;
        }
        if (updates().is_staged()) {
            drop_any(1000);
        } else if (needs_update() && (!updates().is_busy() || updates().is_collecting())) {
            start_update(/*is_good=*/true);
        }
        call(messages::ResumeMemory{}, 1000);
        call(messages::ContinueGeneration{}, 1000);
        advance_until(now_ + milliseconds(500));
        // A resume may have been refused once, because calls were lost.
        const bool is_resident = std::ranges::all_of(replicas_, [](const Replica& replica) {
            return replica.core->is_all_resident();
        });
        if (is_quiet() && is_resident && !needs_update() &&
            updates().state() == messages::UpdateState::kServing)
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
    if (updates().state() != messages::UpdateState::kServing)
        return oracle_.fail("the update does not come to its end; " + describe());
    push_to_the_end();
    submit_again();
    if (has_adapters_) submit_with_adapters();
    for (int i = 0; i < 100 && !oracle_.problem() && !stuck_any_ && !is_quiet(); ++i) {
        call(messages::ContinueGeneration{}, 1000);  // a trainer may have paused, and vanished
        advance_until(now_ + milliseconds(50));
    }
    advance_until(now_ + milliseconds(50));  // the last message is on its way
    if (stuck_any_) return;
    check_clients();
    check_not_finite();
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        if (has_adapters_) check_adapters(r);
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
