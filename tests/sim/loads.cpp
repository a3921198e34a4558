// The world's loads of adapters, amid all other events: adapters are loaded, replaced, changed in
// part, rolled back, unloaded, evicted and restored, and requests name them at any moment.
#include "scheduler_proc/adapter_places.h"
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

using std::chrono::microseconds;

constexpr int kNames = 4;
constexpr int kTries = 20;  // beside other updates, by a client that goes on with an adapter

}  // namespace

std::string World::some_adapter() {
    return std::string(1, static_cast<char>('a' + apart_.between(0, kNames - 1)));
}

void World::act_on_adapters() {
    if (!doors_->is_ready()) return;
    if (apart_.once_in(6)) return call(messages::UnloadAdapter{.name = some_adapter()}, 100);
    // Loads would wait in line, and rollbacks, which do not, would find no moment between two.
    const bool is_beside_session = updates().is_open() && apart_.once_in(2);
    if (updates().is_busy() && !is_beside_session && !apart_.once_in(6)) return;
    if (is_beside_session || apart_.once_in(8)) return start_adapter_push();
    call_for_adapter(static_cast<AdapterCall>(apart_.between(0, 2)), some_adapter(), kTries);
}

// The client learns the digest, which its next part may name. It goes on with that adapter, or does
// not like the new version. It tries again while other updates are under way.
World::Heard World::heard_of_adapter(AdapterCall made, const std::string& name, int num_tries) {
    return [this, made, name, num_tries](const messages::UpdateReply& reply) {
        if (reply.ok) adapter_digests_[name] = reply.digest;
        if (!reply.ok) ++report_.num_adapter_calls_failed.at(static_cast<std::size_t>(made));
        if (!is_active_) return;
        const bool is_busy =
            !reply.ok && reply.verdict.message.find("is under way") != std::string::npos;
        if (is_busy ? num_tries < 2 : !reply.ok || apart_.once_in(5)) return;
        AdapterCall next = made;
        if (!is_busy) {
            const bool likes_it = apart_.once_in(made == AdapterCall::kLoad ? 1 : 3);
            next = likes_it ? AdapterCall::kChange : AdapterCall::kRollBack;
        }
        after(microseconds(apart_.between(1, is_busy ? 2000 : 100)), [=, this] {
            call_for_adapter(next, name, is_busy ? num_tries - 1 : kTries);
        });
    };
}

void World::call_for_adapter(AdapterCall made, const std::string& name, int num_tries) {
    const Heard heard = heard_of_adapter(made, name, num_tries);
    const std::int64_t timeout_ms = apart_.once_in(6) ? 3 : 300;
    fate_ordered_ = !is_active_ || !apart_.once_in(4);
    if (made == AdapterCall::kRollBack) {
        const auto policy = static_cast<messages::AdapterPolicy>(apart_.between(0, 2));
        call(
            messages::RollbackWeights{.adapter = name, .adapter_policy = policy}, timeout_ms, heard
        );
    } else {
        call(messages::UpdateWeights{.update = load_of(made, name)}, timeout_ms, heard);
    }
    fate_ordered_.reset();
}

// A part has tensors or elements of some. The version that it was made for may no longer serve.
messages::UpdateSpec World::load_of(AdapterCall made, const std::string& name) {
    messages::UpdateSpec spec;
    spec.source.path = "/sim";
    spec.adapter = name;
    spec.adapter_policy = static_cast<messages::AdapterPolicy>(apart_.between(0, 2));
    spec.adapter_pinned = apart_.once_in(8);
    spec.label = fmt::format("adapter {}", next_weights_++);
    if (made == AdapterCall::kLoad) return spec;
    spec.partial = true;
    if (apart_.once_in(3)) return spec;
    spec.base_digest = adapter_digests_[apart_.once_in(8) ? some_adapter() : name];
    if (spec.base_digest.empty() || apart_.once_in(2)) return spec;
    spec.source = {
        .kind = messages::SourceKind::kTensors,
        .format = messages::TensorFormat::kSparse,
        .tensors = {{.name = "layer.lora_B.weight", .dtype = "F32", .shape = {8, 8}}},
        .num_updates = {0},
        .payloads = {{}}};
    return spec;
}

// Sends requests for every adapter to every replica, once evictions may be tried again (kRest).
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

// Executes an order about adapters while passes run. Returns false for any other order.
bool World::work_on_adapters(std::size_t r, std::size_t k, const scheduler::ToWorkers& order) {
    ModelWorker& worker = *replicas_[r].ranks[k].worker;
    if (const auto* forget = std::get_if<messages::WorkerForget>(&order)) {
        for (const messages::AdapterId id : forget->adapters) worker.forget(id);
        return true;
    }
    const auto* moves = std::get_if<messages::WorkerAdapters>(&order);
    if (moves == nullptr) return false;
    for (const messages::AdapterId id : moves->evict) {
        if (is_active_ && apart_.once_in(8)) {
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
// and no other. A rollback that failed has given up none.
void World::check_adapters(std::size_t r) {
    check_versions(r);
    const std::vector<messages::AdapterStatus> said =
        replicas_[r].core->status(now_, CallId{1}).adapters;
    std::int64_t num_previous = 0;
    for (const messages::AdapterStatus& each : said) {
        const std::string& name = each.adapter.name;
        const auto replaced = oracle_.adapters().previous(name);
        const bool is_retained =
            replaced && replicas_[r].ranks.front().worker->previous_adapter(name) == replaced;
        num_previous += is_retained ? 1 : 0;
        if (is_retained == each.previous.has_value()) continue;
        oracle_.fail(fmt::format(
            "replica {}: adapter '{}' {} a version before, which is {}",
            r,
            name,
            each.previous ? "has" : "lacks",
            is_retained ? "retained" : "given up"
        ));
    }
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
