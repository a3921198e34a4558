// The world's pushers: sessions that several trainers begin, fill, commit and forget at once.
#include "tests/sim/world.h"

#include <fmt/format.h>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A drop that nobody hinders: two links each way, and what the ranks were at.
constexpr auto kDropTimeMax = milliseconds(500);
constexpr auto kPushTimeMax = seconds(30);

// Returns where a bucket's bytes come from; null: the call is none.
const messages::WeightSource* source_of(const Pusher::Call& call) {
    if (const auto* bucket = std::get_if<messages::UpdateBucket>(&call)) return &bucket->source;
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    return unnamed != nullptr ? &unnamed->update.source : nullptr;
}

}  // namespace

void World::start_push(bool is_dependable) {
    pushers_.push_back(
        std::make_unique<Pusher>(random_, fmt::format("p{}", pushers_.size()), is_dependable)
    );
    go_on(pushers_.size() - 1);
}

// A pusher's next call, and the one after its answer.
void World::go_on(std::size_t i) {
    Pusher& pusher = *pushers_[i];
    std::optional<Pusher::Call> call =
        pusher.next({updates().version().digest, sessions_.digest()});
    if (!call) return;
    const std::int64_t timeout_ms = pusher.timeout_ms();
    const messages::WeightSource* source = source_of(*call);
    const std::string bytes = source != nullptr ? name_of_bytes(*source) : "";
    const bool is_unnamed = std::holds_alternative<messages::UpdateWeights>(*call);
    const std::uint64_t loss = sessions_.untold_loss();
    const Heard heard = [this, i, call, bytes, is_unnamed, loss](const messages::UpdateReply& reply
                        ) {
        // Whoever names no session fills the one that is open: a collected update, too.
        if (!bytes.empty()) collected(bytes, reply);
        const bool is_collected =
            !bytes.empty() &&
            (reply.state == messages::UpdateState::kCollecting || (reply.ok && reply.session == 0));
        if (is_collected && is_unnamed && reply.ok) sessions_.stood_alone(loss);
        // A collected update may have come between the call and what it began.
        if (!is_collected) sessions_.heard(now_, *call, reply, base());
        pushers_[i]->heard(reply);
        after(pushers_[i]->pause(), [this, i] { go_on(i); });
    };
    if (!bytes.empty()) collections_.sent(bytes);
    fate_ordered_ = !is_active_ || !random_.once_in(12);
    std::visit(
        [&](auto message) { this->call(std::move(message), timeout_ms, heard); }, *std::move(call)
    );
    fate_ordered_.reset();
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

// Calls without a session, mostly under a pause: they are to become one update. The trainer may be
// slow, so that the pause ends by itself.
void World::start_collecting() {
    if (!random_.once_in(4)) {
        const double max_s = random_.once_in(3) ? 0.004 : 0;
        call(
            messages::PauseGeneration{.mode = messages::PauseMode::kInPlace, .max_pause_s = max_s},
            200
        );
    }
    collect(random_.between(1, 5));
}

void World::collect(std::int64_t num_left) {
    const std::string bytes = fmt::format("ipc://@c{}", next_weights_++);
    send_collected(bytes, [this, bytes, num_left](const messages::UpdateReply& reply) {
        // An answer that was lost on its way: the call is made again.
        if (reply.ok && random_.once_in(5))
            after(some(1, 1000), [this, bytes] { send_collected(bytes, {}); });
        if (num_left > 1) {
            after(some(1, 3000), [this, num_left] { collect(num_left - 1); });
        } else if (!random_.once_in(4)) {
            after(some(1, 3000), [this] { call(messages::ContinueGeneration{}, 300); });
        }
    });
    // Another thread of the same trainer.
    if (random_.once_in(4)) send_collected(fmt::format("ipc://@c{}", next_weights_++), {});
}

void World::send_collected(const std::string& bytes, Heard then) {
    messages::UpdateWeights message;
    message.update.partial = true;
    message.update.label = bytes.substr(bytes.find('@') + 1);
    message.update.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 3));
    if (message.update.kv_policy == messages::KvPolicy::kAbort) oracle_.mass_abort_allowed();
    message.update.source.kind = messages::SourceKind::kIpc;
    message.update.source.handles = {{"CPU-0-0", bytes}};
    const Heard heard = [this, bytes, then = std::move(then)](const messages::UpdateReply& reply) {
        collected(bytes, reply);
        if (then) then(reply);
    };
    collections_.sent(bytes);
    fate_ordered_ = !is_active_ || !random_.once_in(10);
    call(std::move(message), random_.once_in(10) ? 3 : 300, heard);
    fate_ordered_.reset();
}

// Whatever waits for it, a stage or somebody's session.
void World::commit_any() {
    const messages::CommitWeights commit;
    call(commit, 300, [this, commit, base = base()](const messages::UpdateReply& reply) {
        sessions_.heard(now_, commit, reply, base);
    });
}

void World::drop_any(std::int64_t timeout_ms) { call(messages::DropStage{}, timeout_ms); }

// What is dropped makes room for the next.
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

// Whatever came before, the next trainer gets in.
void World::push_to_the_end() {
    const TimePoint end = now_ + kPushTimeMax;
    start_push(/*is_dependable=*/true);
    while (!oracle_.problem() && !stuck_any_ && !pushers_.back()->has_committed()) {
        if (now_ > end) return oracle_.fail("the last trainer does not get in; " + describe());
        advance_until(now_ + milliseconds(50));
    }
}

}  // namespace pitstop::sim
