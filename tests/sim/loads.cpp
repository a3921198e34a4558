// The world's loads of adapters, beside all else: they are loaded, replaced, unloaded, evicted and
// restored, and requests name them at any moment.
#include "scheduler_proc/adapter_places.h"
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

constexpr int kNames = 4;

}  // namespace

std::string World::some_adapter() {
    return std::string(1, static_cast<char>('a' + apart_.between(0, kNames - 1)));
}

void World::act_on_adapters() {
    if (!doors_->is_ready()) return;
    if (apart_.once_in(5)) return call(messages::UnloadAdapter{.name = some_adapter()}, 100);
    messages::UpdateSpec spec;
    spec.source.path = "/sim";
    spec.adapter = some_adapter();
    spec.adapter_policy = static_cast<messages::AdapterPolicy>(apart_.between(0, 2));
    spec.adapter_pinned = apart_.once_in(8);
    spec.label = fmt::format("adapter {}", next_weights_++);
    fate_ordered_ = !is_active_ || !apart_.once_in(4);
    call(messages::UpdateWeights{.update = spec}, apart_.once_in(6) ? 3 : 300);
    fate_ordered_.reset();
}

// Requests each adapter that is loaded, after the time at which evictions are tried again.
void World::submit_with_adapters() {
    advance_until(now_ + scheduler::AdapterPlaces::kRest);
    oracle_.note_rest();
    for (int i = 0; i < kNames * num_replicas_; ++i) {
        messages::Generate request;
        request.rid = fmt::format("adapted{}", i);
        request.input_ids = {TokenId{2}, TokenId{3 + i}};
        request.sampling.max_new_tokens = 3;
        request.sampling.seed = apart_.next();
        request.adapter = std::string(1, static_cast<char>('a' + i % kNames));
        request.replica = i / kNames;
        clients_["adapted"].open[request.rid] = true;
        submitting_ = {.peer = "adapted", .rid = request.rid};
        say("adapted", messages::Door::kData, request);
        submitting_ = {};
    }
}

// What workers carry out beside their passes. Returns false if the order is another.
bool World::work_on_adapters(std::size_t r, std::size_t k, const scheduler::ToWorkers& order) {
    ModelWorker& worker = *replicas_[r].ranks[k].worker;
    if (const auto* forget = std::get_if<messages::WorkerForget>(&order)) {
        for (const messages::AdapterId id : forget->adapters) worker.forget(id);
        return true;
    }
    const auto* moves = std::get_if<messages::WorkerAdapters>(&order);
    if (moves == nullptr) return false;
    for (const messages::AdapterId id : moves->evict) {
        if (is_active_ && apart_.once_in(12)) {
            messages::WorkerNotEvicted refusal{
                .rank = static_cast<pitstop::Rank>(k), .order = moves->order, .id = id};
            refusal.verdict = Error{ErrorCode::kResourceExhausted, "the simulator's disk is full"};
            worker.note_not_evicted(id);
            answer(r, k, std::move(refusal));
        } else {
            worker.evict(id);
        }
    }
    for (const messages::AdapterId id : moves->restore) {
        after(some(50, apart_.once_in(10) ? 20'000 : 2000), [this, r, k, id, order = moves->order] {
            Rank& rank = replicas_[r].ranks[k];
            if (!rank.is_stuck) answer(r, k, rank.worker->restore(order, id));
        });
    }
    return true;
}

// At rest the workers have the versions that new requests get, those to which a rollback returns,
// and no other.
void World::check_adapters(std::size_t r) {
    const std::vector<messages::AdapterStatus> said =
        replicas_[r].core->status(now_, CallId{1}).adapters;
    const std::int64_t num_previous = std::ranges::count_if(
        said, [](const messages::AdapterStatus& each) { return each.previous.has_value(); }
    );
    for (const Rank& rank : replicas_[r].ranks) {
        if (rank.worker->num_adapters() == std::ssize(said) + num_previous) continue;
        oracle_.fail(fmt::format(
            "replica {}: {} adapters are loaded, {} have a version before, and a worker has {} "
            "versions",
            r,
            said.size(),
            num_previous,
            rank.worker->num_adapters()
        ));
    }
}

}  // namespace pitstop::sim
