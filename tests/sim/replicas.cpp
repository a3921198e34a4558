// The world's replicas: schedulers take their turns, and ranks execute orders.
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

using std::chrono::milliseconds;

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
        // First: a turn ends requests before it plans, and an ended request is not overtaken.
        replica.fairness->retain([&](RequestKey key) { return replica.core->has_request(key); });
        for (const messages::TokenizedRequest& request : arrived) {
            if (replica.core->has_request(request.key)) replica.fairness->arrived(request);
        }
        for (const scheduler::ToWorkers& message : out.workers) {
            if (const auto* plan = std::get_if<messages::StepPlan>(&message))
                replica.fairness->admitted(*plan);
        }
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
        deliver(replica.to_tokenizer, [this, m = std::move(message)] { handle(m); });
    }
    if (out.batch) read_batch(r, *out.batch);
    if (out.wake_at) at(*out.wake_at, [this, r] { make_turn(r); });
}

// The detokenizer's part. Only the ends of requests matter here.
void World::read_batch(std::size_t r, const messages::TokenBatch& batch) {
    messages::TextBatch texts;
    for (const messages::RequestStart& start : batch.starts) oracle_.announced(start.key);
    for (const messages::OutputChunk& chunk : batch.chunks) {
        oracle_.emitted(chunk);
        messages::OutputChunk& text = texts.chunks.emplace_back();
        text.key = chunk.key;
        text.tokens = chunk.tokens;
        text.finish = chunk.finish;
    }
    for (const RequestKey key : batch.drops) oracle_.dropped(key);
    deliver(replicas_[r].to_detokenizer, [this, frames = encode(texts)] { tell_doors(frames); });
}

void World::order(std::size_t r, std::size_t k, const scheduler::ToWorkers& message) {
    deliver(replicas_[r].ranks[k].to, [this, r, k, message] {
        if (const auto* plan = std::get_if<messages::StepPlan>(&message))
            replicas_[r].ranks[k].worker->expect(*plan);
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
            check_whole(r, k);
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
        const std::optional<ModelWorker::Staged> staged = rank.worker->staged();
        const bool is_mending = rank.worker->is_torn() || !rank.worker->has_weights();
        answer(r, k, rank.worker->commit(*commit));
        if (staged && note_adapter(*staged)) return work(r, k);
        if (commit->rollback) trainers_.rolled_back();
        if (staged && !commit->rollback && took_effect_.insert(commit->epoch).second)
            trainers_.took_effect(*staged, is_mending);
        collections_.committed(oracle_.weights_at(commit->epoch));
        ++report_.num_commits;
    } else if (work_on_adapters(r, k, order)) {
        return work(r, k);
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
    const bool is_of_update = std::holds_alternative<messages::WorkerFilled>(message) ||
                              std::holds_alternative<messages::WorkerStaged>(message) ||
                              std::holds_alternative<messages::WorkerCommitted>(message) ||
                              std::holds_alternative<messages::WorkerDropped>(message);
    const bool is_of_adapters = std::holds_alternative<messages::WorkerNotEvicted>(message) ||
                                std::holds_alternative<messages::WorkerRestored>(message);
    const Event arrive = [this, r, message = std::move(message)] {
        replicas_[r].inbox.workers.push_back(message);
        make_turn(r);
    };
    const int num_copies = has_faults_ && random_.once_in(60) ? 2 : 1;
    for (int i = 0; i < num_copies; ++i) deliver(replicas_[r].ranks[k].from, arrive);
    if (is_of_update || is_of_adapters) repeat_late(arrive);
}

// Repeats an answer to an order, perhaps after the next order of the same kind. The answer must
// count only for its own order (P2).
void World::repeat_late(Event event) {
    if (!has_faults_ || !random_.once_in(2)) return;
    ++report_.num_late_answers;
    after(some(1, 20'000), std::move(event));
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
    const bool is_hit = fate_replica_ == static_cast<int>(r) &&
                        fate_rank_.value_or(static_cast<int>(k)) == static_cast<int>(k);
    return is_hit ? next_fate_ : ModelWorker::StageFate::kGood;
}

void World::handle(const scheduler::ToTokenizer& message) {
    if (const auto* memory = std::get_if<messages::MemoryPart>(&message)) {
        if (!memory->has_weights) ++report_.num_discards;
    }
    if (const auto* standing = std::get_if<messages::ReplicaStanding>(&message))
        standings_[standing->replica] = *standing;
    const messages::Frames frames =
        std::visit([](const auto& part) { return encode(part); }, message);
    tell_doors(frames);
    const auto* part = std::get_if<messages::UpdatePart>(&message);
    // An answer about a bucket does not name the bucket, so it is never repeated.
    if (part != nullptr && part->order != messages::UpdateOrder::kFill)
        repeat_late([this, frames] { tell_doors(frames); });
}

// Draws the result of the next stage or bucket, and the ranks that it happens on. If a whole
// replica refuses the stage, another replica may have been overwritten.
void World::draw_fate(bool is_good) {
    // A rank that gets other bytes than the other ranks is noticed only by comparison with them.
    const bool has_others = num_replicas_ * shape_.tp > 1;
    next_fate_ = is_good
                     ? ModelWorker::StageFate::kGood
                     : static_cast<ModelWorker::StageFate>(random_.between(1, has_others ? 3 : 2));
    fate_replica_ = static_cast<int>(random_.between(0, num_replicas_ - 1));
    fate_rank_.reset();
    if (!random_.once_in(3)) fate_rank_ = static_cast<int>(random_.between(0, shape_.tp - 1));
}

}  // namespace pitstop::sim
