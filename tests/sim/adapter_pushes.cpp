// The world's sessions that bring adapters: their trainers are pushers, as those of the model's
// sessions are. An adapter's call ends no update but that adapter's, and a version of an adapter is
// on all ranks or on none.
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

void World::start_adapter_push() {
    pushers_.push_back(std::make_unique<Pusher>(
        apart_,
        fmt::format("{}{}", kOfAdapters, pushers_.size()),
        /*is_dependable=*/apart_.once_in(2),
        some_adapter()
    ));
    go_on(pushers_.size() - 1);
}

// The doors give no reason for a drop that a call asks for: drop_stage, or a whole model that takes
// the place of collected calls.
void World::note_drop(const messages::UpdateDrop& drop) {
    dropped_.insert(drop.update);
    last_drop_ = {.at = now_, .update = drop.update, .reason = drop.reason};
    if (!drop.reason.empty()) return;
    const bool is_of_model = !loads_.contains(drop.update);
    const bool is_asked_for = std::ranges::any_of(calls_, [&](const auto& entry) {
        const Call& call = entry.second;
        const bool brings_model =
            call.adapter.empty() && (call.name == messages::UpdateWeights::kType ||
                                     call.name == messages::StageWeights::kType ||
                                     call.name == messages::BeginUpdate::kType);
        return call.num_answers == 0 &&
               (call.name == messages::DropStage::kType || (is_of_model && brings_model));
    });
    if (is_asked_for) return;
    oracle_.fail(fmt::format(
        "update {} is dropped, and no call asked for that", static_cast<std::uint64_t>(drop.update)
    ));
}

// A call is refused, and an update may be dropped for that in the same turn. A call for an adapter
// is a part of no other adapter's update, and of none of the model.
void World::heard_of_part(const Call& call, const Error& why) {
    if (last_drop_.at != now_ || !last_drop_.reason.ends_with("was refused: " + why.message))
        return;
    const auto place = loads_.find(last_drop_.update);
    const std::string adapter = place == loads_.end() ? "" : place->second;
    if (call.adapter.empty() || call.adapter == adapter) {
        last_drop_.is_explained = true;
    } else {
        last_drop_.stranger = call.adapter;
    }
}

// Several calls may be refused in one turn, with the same words.
void World::check_last_drop() {
    if (last_drop_.stranger.empty() || last_drop_.is_explained) return;
    const auto place = loads_.find(last_drop_.update);
    oracle_.fail(fmt::format(
        "update {} of {} is dropped, because a call for adapter '{}' was refused (P2)",
        static_cast<std::uint64_t>(last_drop_.update),
        place == loads_.end() ? "the model" : fmt::format("adapter '{}'", place->second),
        last_drop_.stranger
    ));
}

// A caller is told that an adapter's version serves: every rank holds every byte of it (P2, P10).
void World::check_told_of_adapter(const Call& call, const messages::UpdateReply& reply) {
    const bool is_end = call.name == messages::CommitWeights::kType ||
                        call.name == messages::RollbackWeights::kType ||
                        (call.name == messages::UpdateWeights::kType && reply.session == 0);
    if (!reply.ok || !is_end) return;
    adapter_digests_[reply.adapter] = reply.digest;
    const auto id = static_cast<messages::AdapterId>(raw(reply.epoch));
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        for (std::size_t k = 0; k < replicas_[r].ranks.size(); ++k) {
            const std::optional<WeightsId> held = replicas_[r].ranks[k].worker->adapter(id);
            if (held && sessions_.digest_of_weights(*held) == reply.digest) continue;
            return oracle_.fail(fmt::format(
                "version {} of adapter '{}' is said to serve, and replica {} rank {} holds {} (P2, "
                "P10)",
                raw(reply.epoch),
                reply.adapter,
                r,
                k,
                held ? "other weights" : "none"
            ));
        }
    }
}

// A rank commits `staged`. Returns whether it is a version of an adapter, which takes effect.
bool World::note_adapter(const ModelWorker::Staged& staged) {
    if (!staged.is_of_adapter) return false;
    if (dropped_.contains(staged.update)) {
        oracle_.fail(fmt::format(
            "update {} is dropped, and its adapter takes effect (P2)",
            static_cast<std::uint64_t>(staged.update)
        ));
    }
    if (loads_in_effect_.insert(staged.update).second)
        trainers_.took_effect(staged, /*is_mending=*/false);
    return true;
}

// At rest each replica serves the newest versions, with their digests and under one label, and each
// of its ranks holds them.
void World::check_versions(std::size_t r) {
    const std::vector<messages::AdapterStatus> said =
        replicas_[r].core->status(now_, CallId{1}).adapters;
    const std::vector<messages::AdapterStatus> first =
        replicas_.front().core->status(now_, CallId{1}).adapters;
    const AdapterBook& book = oracle_.adapters();
    for (const messages::AdapterStatus& each : said) {
        const std::string& name = each.adapter.name;
        const AdapterBook::MaybeId newest = book.newest(name);
        const std::optional<WeightsId> weights = book.weights_of(newest);
        const bool is_newest =
            weights && static_cast<messages::AdapterId>(raw(each.adapter.version)) == *newest &&
            sessions_.digest_of_weights(*weights) == each.adapter.digest;
        const bool is_held =
            is_newest && std::ranges::all_of(replicas_[r].ranks, [&](const auto& rank) {
                return rank.worker->adapter(*newest) == weights;
            });
        const bool is_alike = std::ranges::any_of(first, [&](const auto& other) {
            return other.adapter == each.adapter && other.pinned == each.pinned;
        });
        if (is_held && is_alike) continue;
        oracle_.fail(fmt::format(
            "replica {}: version {} of adapter '{}' serves, which {} (P2)",
            r,
            raw(each.adapter.version),
            name,
            !is_newest ? "is not the last one committed"
            : !is_held ? "a rank lacks"
                       : "is another one on replica 0"
        ));
    }
    if (said.size() != first.size())
        oracle_.fail(fmt::format("replicas 0 and {} serve other adapters (P2)", r));
}

// After the end of an update, no rank holds a stage, and no other version is on record than the one
// that serves.
void World::check_nothing_staged() {
    if (updates().is_busy()) return;
    if (updates().decided() != updates().version())
        oracle_.fail("a version of the model is on record that does not serve (P2)");
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
        for (std::size_t k = 0; k < replicas_[r].ranks.size(); ++k) {
            if (!replicas_[r].ranks[k].worker->has_stage()) continue;
            return oracle_.fail(
                fmt::format("replica {} rank {} holds a stage, and no update is under way", r, k)
            );
        }
    }
}

}  // namespace pitstop::sim
