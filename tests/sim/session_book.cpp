#include "tests/sim/session_book.h"

#include "base/digest.h"
#include "messages/version_digest.h"

#include <fmt/format.h>

#include <type_traits>
#include <variant>
#include <vector>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;

// How late the tick may be that ends an idle session.
constexpr auto kTickSlack = milliseconds(1);

}  // namespace

std::string SessionBook::digest_of_weights(WeightsId weights) const {
    std::vector<std::vector<messages::PartDigest>> parts;
    std::vector<messages::RankParts> ranks;
    for (int rank = 0; rank < shape_.tp; ++rank)
        parts.push_back(parts_of(weights, static_cast<Rank>(rank), shape_.tp));
    for (int rank = 0; rank < shape_.tp; ++rank)
        ranks.push_back({static_cast<Rank>(rank), parts[static_cast<std::size_t>(rank)]});
    return to_hex(messages::version_digest(ranks)->digest);
}

std::string SessionBook::digest() const {
    return session_ && session_->at != At::kEnding ? digest_of_weights(session_->weights) : "";
}

void SessionBook::ordered(TimePoint now, const tokenizer::UpdateCoordinator::Order& order) {
    if (const auto* commit = std::get_if<messages::UpdateCommit>(&order))
        committed_update_ = commit->update;
    if (!std::visit([&](const auto& message) { return is_about(message.update); }, order)) return;
    const auto* drop = std::get_if<messages::UpdateDrop>(&order);
    if (drop != nullptr && session_->at == At::kIdle && !drop->reason.empty()) {  // nobody asked
        if (now < session_->idle_since + session_->idle_timeout)
            oracle_.fail(fmt::format("session {} is given up before its time", session_->id));
        ++num_expired;
    }
    if (std::holds_alternative<messages::UpdateFill>(order)) ++session_->num_filling;
    session_->at = drop != nullptr || std::holds_alternative<messages::UpdateCommit>(order)
                       ? At::kEnding
                       : At::kBusy;
}

void SessionBook::heard(
    TimePoint now, const Pusher::Call& call, const messages::UpdateReply& reply, const Base& base
) {
    if (!reply.ok) return;
    if (const auto* begin = std::get_if<messages::BeginUpdate>(&call))
        return begun(now, *begin, reply, base);
    if (const auto* bucket = std::get_if<messages::UpdateBucket>(&call))
        return filled(now, *bucket, reply);
    if (const auto* commit = std::get_if<messages::CommitWeights>(&call))
        return committed(*commit, reply);
}

void SessionBook::begun(
    TimePoint now,
    const messages::BeginUpdate& call,
    const messages::UpdateReply& reply,
    const Base& base
) {
    if (session_ && session_->at != At::kEnding)
        oracle_.fail(fmt::format("session {} is open beside {}", reply.session, session_->id));
    session_ = {
        .id = reply.session,
        .label = call.update.label,
        .weights =
            call.update.partial && base.is_whole ? oracle_.weights_at(base.serving) : WeightsId{},
        .idle_timeout = milliseconds(call.idle_timeout_ms),
        .idle_since = now,
    };
    ++num_begun;
}

void SessionBook::filled(
    TimePoint now, const messages::UpdateBucket& call, const messages::UpdateReply& reply
) {
    if (!session_ || reply.session != session_->id || session_->at != At::kBusy)
        return oracle_.fail(fmt::format("a bucket for session {}, which is over", reply.session));
    if (call.session != 0 && call.session != session_->id)
        return oracle_.fail(
            fmt::format("a bucket for session {} is in session {}", call.session, session_->id)
        );
    session_->weights = with_bytes(session_->weights, name_of_bytes(call.source));
    // The next one may have been ordered already: it waited for its turn.
    if (--session_->num_filling == 0) session_->at = At::kIdle;
    session_->idle_since = now;
    ++num_buckets;
}

void SessionBook::committed(
    const messages::CommitWeights& call, const messages::UpdateReply& reply
) {
    if (!is_about(committed_update_)) return;  // of a stage
    const std::string digest = digest_of_weights(session_->weights);
    const std::string& label = call.label.empty() ? session_->label : call.label;
    if (oracle_.weights_at(reply.epoch) != session_->weights || reply.digest != digest) {
        oracle_.fail(fmt::format(
            "session {} is committed with other bytes than were sent (P2)", session_->id
        ));
    }
    if (!call.digest.empty() && call.digest != digest)
        oracle_.fail(fmt::format("session {} is not what its caller declared", session_->id));
    if (reply.label != label)
        oracle_.fail(
            fmt::format("session {} is named '{}', not '{}'", session_->id, reply.label, label)
        );
    ++num_committed;
}

void SessionBook::check(TimePoint now) {
    if (!session_ || session_->at != At::kIdle) return;
    if (now > session_->idle_since + session_->idle_timeout + kTickSlack)
        oracle_.fail(fmt::format("nobody goes on with session {}, and it is held", session_->id));
}

}  // namespace pitstop::sim
