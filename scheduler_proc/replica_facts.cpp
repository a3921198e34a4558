#include "scheduler_proc/replica_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pitstop::scheduler {
namespace {

Error refused(std::string why) { return {ErrorCode::kFailedPrecondition, std::move(why)}; }

constexpr std::string_view kNoWeights =
    "there are no weights: none have arrived yet, or they were released and not kept";

}  // namespace

messages::ReplicaState ReplicaFacts::state() const {
    using enum messages::ReplicaState;
    if (!workers.is_complete()) return kLoading;
    if (update.weights().are_torn()) return kTorn;
    if (is_released()) return kReleased;
    if (!update.weights().are_whole()) return kAwaitingWeights;
    if (pause.is_paused()) return pause.is_standing() ? kPaused : kPausing;
    if (update.has_loan() || update.drains() || update.overwrites()) return kUpdating;
    return kRunning;
}

messages::ReplicaStanding ReplicaFacts::standing() const {
    messages::ReplicaStanding standing{
        .replica = config.replica,
        .is_paused = pause.is_paused(),
        .pauses_expired = pause.num_expired(),
        .has_weights = update.weights().are_whole(),
    };
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        const bool is_lent = tag == messages::MemoryTag::kKvCache && memory.is_on_loan();
        if (!memory.is_resident(tag) && !is_lent) standing.released.push_back(tag);
    }
    return standing;
}

messages::ReplicaStatus ReplicaFacts::status(TimePoint now) const {
    const Version& version = update.weights().version();
    messages::ReplicaStatus status;
    status.replica = config.replica;
    status.state = state();
    status.epoch = version.epoch;
    status.label = version.label;
    status.digest = version.digest;
    status.workers = workers.status();
    for (messages::WorkerStatus& worker : status.workers)
        worker.graph_bytes = memory.graph_bytes(worker.rank);
    status.has_weights = update.weights().are_whole();
    status.memory = memory.totals();
    runner.report_to(status, now);
    pause.report_to(status, now);
    if (pause.is_standing()) status.output_tokens_per_s = 0;
    return status;
}

Runner::Scope ReplicaFacts::scope() const {
    using Scope = Runner::Scope;
    const bool may_run =
        workers.is_complete() && update.weights().are_whole() && memory.is_all_resident();
    if (!may_run) return Scope::kNothing;
    if (pause.is_paused() && !pause.runs_out()) return Scope::kNothing;
    if (update.has_loan()) return update.drains_for_loan() ? Scope::kStarted : Scope::kNothing;
    if (update.drains()) return Scope::kStarted;
    if (update.overwrites()) return Scope::kNothing;
    return pause.is_paused() ? Scope::kStarted : Scope::kEverything;
}

std::optional<Error> ReplicaFacts::why_not_ready() const {
    if (workers.is_complete()) return std::nullopt;
    return make_error(
        ErrorCode::kUnavailable,
        "replica {} is loading; waiting for {}",
        raw(config.replica),
        workers.who_is_missing()
    );
}

std::optional<Error> ReplicaFacts::why_idle() const {
    if (update.weights().are_torn()) {
        return refused(
            "the weights are torn: a direct update failed half-way; nothing is generated until the "
            "next complete update"
        );
    }
    if (is_released()) {
        return refused(
            fmt::format("{}; nothing is generated until it is resumed", memory.what_is_missing())
        );
    }
    if (!update.weights().are_whole()) {
        return refused(
            fmt::format("{}; nothing is generated until the next complete update", kNoWeights)
        );
    }
    return std::nullopt;
}

std::optional<Error> ReplicaFacts::why_not_on() const {
    if (!update.weights().are_torn() && !is_released()) return std::nullopt;
    return why_idle();
}

std::optional<std::string> ReplicaFacts::why_no_drain() const {
    if (!runner.requests().has_started()) return std::nullopt;
    if (memory.is_lent()) {
        return "running requests cannot finish (drain): their KV was lent to the update; the stage "
               "must declare drain";
    }
    if (pause.is_paused() && pause.mode() != messages::PauseMode::kWait) {
        return fmt::format(
            "paused with {} running and {} waiting requests, which cannot finish (drain)",
            runner.requests().num_running(),
            runner.requests().num_waiting()
        );
    }
    if (const auto reason = why_idle())
        return fmt::format("running requests cannot finish (drain): {}", reason->message);
    return std::nullopt;
}

std::optional<std::string> ReplicaFacts::why_no_update() const {
    if (!workers.is_complete()) return "still loading";
    if (!memory.is_resident(messages::MemoryTag::kWeights)) return memory.what_is_missing();
    return std::nullopt;
}

std::optional<Error> ReplicaFacts::why_unreadable() const {
    if (auto error = why_not_ready()) return error;
    if (!memory.is_resident(messages::MemoryTag::kWeights))
        return refused("the weights are released, or about to be; resume them first");
    if (update.weights().are_awaited()) return refused(std::string(kNoWeights));
    return std::nullopt;
}

std::optional<Error> ReplicaFacts::why_no_label() const {
    if (auto error = why_not_ready()) return error;
    if (const auto id = update.under_way()) {
        return refused(fmt::format(
            "update {} is under way and sets its own label; wait for it",
            static_cast<std::uint64_t>(*id)
        ));
    }
    return update.weights().are_whole() ? std::nullopt : why_idle();
}

std::optional<Error> ReplicaFacts::why_no_release(const std::vector<messages::MemoryTag>& tags
) const {
    if (auto error = why_not_ready()) return error;
    const auto names = [&](messages::MemoryTag tag) {
        return std::ranges::find(tags, tag) != tags.end();
    };
    const OpenRequests& requests = runner.requests();
    if (!pause.is_paused() && requests.num_open() > 0) {
        return refused(fmt::format(
            "{} requests are open and generation is not paused; pause first, or wait for them",
            requests.num_open()
        ));
    }
    if (pause.runs_out()) return refused("a pause is still waiting for running requests to end");
    if (names(messages::MemoryTag::kKvCache) && requests.num_running() > 0) {
        return refused(fmt::format(
            "kv_cache is in use: {}; pause with retract first", requests.describe_page_holders()
        ));
    }
    const std::optional<messages::UpdateId> id = update.under_way();
    const bool is_on_loan = update.has_loan() || memory.is_on_loan();
    if (id && (names(messages::MemoryTag::kWeights) || update.is_committing() || is_on_loan)) {
        return refused(fmt::format(
            "update {} is under way; wait for it, or drop its stage",
            static_cast<std::uint64_t>(*id)
        ));
    }
    return std::nullopt;
}

std::optional<Error> ReplicaFacts::why_no_resume() const {
    if (auto error = why_not_ready()) return error;
    if (!memory.is_lent()) return std::nullopt;
    return refused("kv_cache is lent to an update (--update-mode lend) until the update ends");
}

}  // namespace pitstop::scheduler
