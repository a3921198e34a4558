// The world's pushers: sessions that several trainers begin, fill, commit and forget at once.
#include "tests/sim/world.h"

#include <fmt/format.h>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The time of an undisturbed drop: two links each way, and the ranks' current work.
constexpr auto kDropTimeMax = milliseconds(500);
constexpr auto kPushTimeMax = seconds(30);

const std::vector<messages::MemoryTag> kKv{messages::MemoryTag::kKvCache};

// Returns the source of a bucket's bytes; null: the call is no bucket.
const messages::WeightSource* source_of(const Pusher::Call& call) {
    if (const auto* bucket = std::get_if<messages::UpdateBucket>(&call)) return &bucket->source;
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    return unnamed != nullptr ? &unnamed->update.source : nullptr;
}

// The version's label in a bucket; empty: none.
std::string label_of(const Pusher::Call& call) {
    if (const auto* bucket = std::get_if<messages::UpdateBucket>(&call)) return bucket->label;
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    return unnamed != nullptr ? unnamed->update.label : "";
}

}  // namespace

void World::start_push(bool is_dependable) {
    pushers_.push_back(
        std::make_unique<Pusher>(random_, fmt::format("p{}", pushers_.size()), is_dependable)
    );
    go_on(pushers_.size() - 1);
}

// Sends a pusher's next call, and after its answer the following call.
void World::go_on(std::size_t i) {
    Pusher& pusher = *pushers_[i];
    const std::string& adapter = pusher.adapter();
    const std::string serving =
        adapter.empty() ? updates().version().digest : adapter_digests_[adapter];
    std::optional<Pusher::Call> call = pusher.next({serving, sessions_.digest()});
    if (!call) return;
    const std::int64_t timeout_ms = pusher.timeout_ms();
    const messages::WeightSource* source = source_of(*call);
    const std::string bytes = source != nullptr ? name_of_bytes(*source) : "";
    const std::string label = label_of(*call);
    const std::uint64_t loss = sessions_.untold_loss(adapter);
    const Heard heard = [this, i, call, bytes, loss](const messages::UpdateReply& reply) {
        heard_of_bytes(bytes, *call, loss, reply, pushers_[i]->adapter());
        tell_trainers_of(i, *call, bytes, reply);
        pushers_[i]->heard(reply);
        after(pushers_[i]->pause(), [this, i] { go_on(i); });
    };
    if (!bytes.empty()) {
        collections_.sent(bytes);
        const auto* bucket = std::get_if<messages::UpdateBucket>(&*call);
        if (bucket != nullptr && bucket->session == 0) {
            trainers_.sent_to_whichever(bytes, label, adapter);
        } else {
            trainers_.sent(bytes, bucket != nullptr ? bucket->session : 0, label, adapter);
        }
    }
    fate_ordered_ = !is_active_ || !random_.once_in(12);
    std::visit(
        [&](auto message) { call_as(pusher.name(), std::move(message), timeout_ms, heard); },
        *std::move(call)
    );
    fate_ordered_.reset();
}

// An answered call brought these bytes. Without a session number the call fills the open session,
// which may be a collected update. `loss`: the lost session that no caller knew of when the call
// was sent. `adapter`: the one that the caller brings; empty: the model.
void World::heard_of_bytes(
    const std::string& bytes,
    const Pusher::Call& call,
    std::uint64_t loss,
    const messages::UpdateReply& reply,
    const std::string& adapter
) {
    if (!bytes.empty()) collected(bytes, reply);
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    // The state in a refusal is the tree's: kCollecting may be due to another trainer's calls.
    const bool is_collected =
        !bytes.empty() && reply.ok &&
        (reply.state == messages::UpdateState::kCollecting || reply.session == 0);
    if (is_collected && unnamed != nullptr && unnamed->unnamed)
        sessions_.stood_alone(adapter, loss);
    // A collected update may have come between the call and the session that it began.
    const bool is_of_bus = unnamed != nullptr && !unnamed->unnamed;
    if (!is_collected && !is_of_bus) sessions_.heard(now_, call, reply, base(), adapter);
}

// A pusher's begin, bucket, commit or drop is answered.
void World::tell_trainers_of(
    std::size_t i,
    const Pusher::Call& call,
    const std::string& bytes,
    const messages::UpdateReply& reply
) {
    const bool has_begun = std::holds_alternative<messages::BeginUpdate>(call);
    if (has_begun && reply.ok) {
        const auto& begin = std::get<messages::BeginUpdate>(call);
        return trainers_.began(
            now_, reply.session, begin.unnamed && !sessions_.must_be_named(), begin.update.adapter
        );
    }
    if (has_begun) return;
    if (!bytes.empty()) return tell_trainers(bytes, reply);
    if (!reply.ok) trainers_.refused(now_, pushers_[i]->name(), reply.verdict.error());
}

// A call that may be collected is answered. Its commit or drop may have been ordered before.
void World::collected(const std::string& bytes, const messages::UpdateReply& reply) {
    using Over = CollectionBook::Over;
    if (updates().is_dropping()) return collections_.answered(bytes, reply);
    const bool is_whole =
        updates().has_collection() ? updates().is_collecting_all() : !base().is_whole;
    collections_.heard(
        bytes,
        reply,
        is_whole ? Over::kNothing : Over::kServing,
        oracle_.weights_at(updates().version().epoch)
    );
}

// A trainer gets the answer to a call with these bytes.
void World::tell_trainers(const std::string& bytes, const messages::UpdateReply& reply) {
    const bool is_later = reply.session != 0 || reply.state == messages::UpdateState::kCollecting;
    if (reply.ok && is_later) {
        trainers_.acknowledged(now_, bytes, reply.session);
    } else if (!reply.ok) {
        const Error why = reply.verdict.error();
        trainers_.refused(now_, trainer_of(bytes), why);
        const bool is_refused =
            why.code == ErrorCode::kFailedPrecondition || why.code == ErrorCode::kInvalidArgument;
        if (is_refused && updates().has_collection() && !are_of_adapter(bytes))
            trainers_.part_refused(bytes);
    }
}

// Calls without a session, mostly under a pause, that are to become one update. The trainer may be
// so slow that the pause ends by itself. Another trainer may send such calls, too, or take over.
void World::start_collecting() {
    Collector trainer{
        .name = fmt::format("t{}", num_collectors_++),
        .num_left = random_.between(1, 5),
        .names_version = !random_.once_in(3),
        .shares_gpu = random_.once_in(4),
        .is_unnamed = random_.once_in(3),
        .is_mortal = random_.once_in(4),
        .is_stubborn = random_.once_in(3)};
    if (!random_.once_in(4)) {
        const double max_s = random_.once_in(3) ? 0.004 : 0;
        const auto mode =
            trainer.shares_gpu ? messages::PauseMode::kRetract : messages::PauseMode::kInPlace;
        call_as(trainer.name, messages::PauseGeneration{.mode = mode, .max_pause_s = max_s}, 200);
        if (trainer.shares_gpu) call_as(trainer.name, messages::ReleaseMemory{.tags = kKv}, 100);
    }
    if (random_.once_in(4)) after(some(1, 8000), [this] { start_collecting(); });
    if (random_.once_in(4)) after(some(1, 8000), [this] { start_push(/*is_dependable=*/false); });
    collect(std::move(trainer));
}

void World::collect(Collector trainer) {
    const auto next_bytes = [&] {
        return fmt::format("ipc://@{}-{}", trainer.name, trainer.num_sent++);
    };
    const std::string bytes = next_bytes();
    const std::string beside = random_.once_in(4) ? next_bytes() : "";
    --trainer.num_left;
    const Heard heard = [this, bytes, trainer](const messages::UpdateReply& reply) {
        // The answer was lost, or the trainer does not believe it: the call is made again.
        if (reply.ok ? random_.once_in(5) : trainer.is_stubborn)
            after(some(1, 1000), [this, trainer, bytes] { send_collected(trainer, bytes, {}); });
        if (trainer.is_mortal && random_.once_in(3)) return;
        if (trainer.num_left > 0) {
            after(some(1, 3000), [this, trainer] { collect(trainer); });
            // Any other call may come between two calls of the trainer.
            if (random_.once_in(12)) after(some(1, 1500), [this] { drop_any(300); });
            if (random_.once_in(3)) after(some(1, 1500), [this] { act(); });
        } else if (!trainer.is_mortal) {
            after(some(1, 3000), [this, trainer] { go_on(trainer); });
        }
    };
    send_collected(trainer, bytes, heard);
    // Another thread of the same trainer.
    if (!beside.empty()) send_collected(trainer, beside, {});
    // A call that its front end refuses.
    if (random_.once_in(15)) {
        after(some(1, 1000), [this, name = trainer.name] {
            const Heard noted = [this, name](const messages::UpdateReply&) {
                if (updates().has_collection()) trainers_.refused_by_front_end(name);
            };
            call_as(name, messages::RefusedPart{.why = "http_proc answered 400"}, 300, noted);
        });
    }
}

// The trainer has sent all. The answer to its resume may come after its continue.
void World::go_on(const Collector& trainer) {
    if (trainer.shares_gpu) call_as(trainer.name, messages::ResumeMemory{.tags = kKv}, 100);
    after(some(1, trainer.shares_gpu ? 800 : 1), [this, name = trainer.name] {
        call_as(name, messages::ContinueGeneration{}, 300);
    });
}

void World::send_collected(const Collector& trainer, const std::string& bytes, Heard then) {
    messages::UpdateWeights message;
    message.unnamed = trainer.is_unnamed;
    message.update.partial = true;
    if (trainer.names_version) message.update.label = trainer.name;
    message.update.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 3));
    if (message.update.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
    message.update.source.kind = messages::SourceKind::kIpc;
    message.update.source.handles = {{"CPU-0-0", bytes}};
    const std::uint64_t loss = sessions_.untold_loss("");
    const messages::UpdateWeights sent = message;
    const Heard heard =
        [this, bytes, loss, sent, then = std::move(then)](const messages::UpdateReply& reply) {
            tell_trainers(bytes, reply);
            heard_of_bytes(bytes, sent, loss, reply, "");
            if (then) then(reply);
        };
    collections_.sent(bytes);
    trainers_.sent(bytes, 0, message.update.label);
    fate_ordered_ = !is_active_ || !random_.once_in(10);
    call_as(trainer.name, std::move(message), random_.once_in(10) ? 3 : 300, heard);
    fate_ordered_.reset();
}

// Commits whatever waits for a commit, a stage or a session.
void World::commit_any() {
    const messages::CommitWeights commit;
    call(commit, 300, [this, commit, base = base()](const messages::UpdateReply& reply) {
        sessions_.heard(now_, commit, reply, base);
    });
}

void World::drop_any(std::int64_t timeout_ms) { call(messages::DropStage{}, timeout_ms); }

// A drop must end in time, as the next update needs its room.
void World::watch_drop(messages::UpdateId update) {
    after(kDropTimeMax, [this, update] {
        if (stuck_any_ || dropping_ != update || !updates().is_busy()) return;
        oracle_.fail(fmt::format(
            "update {} is dropped and does not end; {}",
            static_cast<std::uint64_t>(update),
            describe()
        ));
    });
}

// Whatever happened before, the next trainer's update succeeds.
void World::push_to_the_end() {
    const TimePoint end = now_ + kPushTimeMax;
    start_push(/*is_dependable=*/true);
    while (!oracle_.problem() && !stuck_any_ && !pushers_.back()->has_committed()) {
        if (now_ > end) return oracle_.fail("the last trainer does not get in; " + describe());
        advance_until(now_ + milliseconds(50));
    }
}

}  // namespace pitstop::sim
