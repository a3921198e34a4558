// The world's pushers: sessions that several trainers begin, fill, commit and forget at once.
#include "tests/sim/world.h"

#include <fmt/format.h>

#include <type_traits>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A drop that nobody hinders: two links each way, and what the ranks were at.
constexpr auto kDropTimeMax = milliseconds(500);
constexpr auto kPushTimeMax = seconds(30);

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
        pusher.next({coordinator_.version().digest, sessions_.digest()});
    if (!call) return;
    const std::int64_t timeout_ms = pusher.timeout_ms();
    const CallId id{next_call_};
    std::visit(
        [&](auto& message) {
            message.call = id;
            message.timeout_ms = timeout_ms;
            if constexpr (requires { messages::invalid(message); }) {
                if (const auto problem = messages::invalid(message))
                    oracle_.fail("of a pusher: " + *problem);
            }
        },
        *call
    );
    const SessionBook::Base base = this->base();
    const bool is_good = !is_active_ || !random_.once_in(12);
    const tokenizer::UpdateCoordinator::Caller who =
        caller(timeout_ms, [this, i, call, base](const messages::UpdateReply& reply) {
            sessions_.heard(now_, *call, reply, base);
            pushers_[i]->heard(reply);
            after(pushers_[i]->pause(), [this, i] { go_on(i); });
        });
    coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
        std::visit(
            [&](const auto& message) {
                using Message = std::remove_cvref_t<decltype(message)>;
                if constexpr (std::is_same_v<Message, messages::BeginUpdate>) {
                    coordinator_.begin_session(now_, who, message, out);
                } else if constexpr (std::is_same_v<Message, messages::UpdateBucket>) {
                    coordinator_.bucket(now_, who, message, out);
                } else if constexpr (std::is_same_v<Message, messages::CommitWeights>) {
                    coordinator_.commit(now_, who, message, out);
                } else {
                    coordinator_.drop(now_, who, message, out);
                }
            },
            *call
        );
        if (!out.orders.empty()) draw_fate(is_good);  // not refused
    });
}

// Whatever waits for it, a stage or somebody's session.
void World::commit_any() {
    const messages::CommitWeights call{.call = CallId{next_call_}, .timeout_ms = 300};
    const SessionBook::Base base = this->base();
    const tokenizer::UpdateCoordinator::Caller who =
        caller(call.timeout_ms, [this, call, base](const messages::UpdateReply& reply) {
            sessions_.heard(now_, call, reply, base);
        });
    coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
        coordinator_.commit(now_, who, call, out);
    });
}

void World::drop_any(std::int64_t timeout_ms) {
    const messages::DropStage call{.call = CallId{next_call_}, .timeout_ms = timeout_ms};
    const tokenizer::UpdateCoordinator::Caller who = caller(timeout_ms);
    coordinate([&](tokenizer::UpdateCoordinator::Out& out) {
        coordinator_.drop(now_, who, call, out);
    });
}

// What is dropped makes room for the next.
void World::watch_drop(messages::UpdateId update) {
    after(kDropTimeMax, [this, update] {
        if (stuck_any_ || dropping_ != update || !coordinator_.is_busy()) return;
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
