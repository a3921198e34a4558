#include "tests/sim/session_book.h"

#include <fmt/format.h>

#include <type_traits>
#include <variant>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;

// The tick that ends an idle session may be this late.
constexpr auto kTickSlack = milliseconds(1);

// Returns whether the answer to a begin reports that the begin dropped that session.
bool took_over(const messages::UpdateReply& reply, std::uint64_t session) {
    return session != 0 && reply.verdict.message.starts_with(fmt::format("session {} ", session));
}

}  // namespace

std::string SessionBook::digest_of_weights(WeightsId weights) const {
    return version_digest_of(weights, shape_.tp);
}

std::string SessionBook::digest() const {
    return session_ && session_->at != At::kEnding ? digest_of_weights(session_->weights) : "";
}

void SessionBook::ordered(TimePoint now, const tokenizer::ReplicaOrder& order) {
    if (const auto* commit = std::get_if<messages::UpdateCommit>(&order))
        committed_update_ = commit->update;
    if (!std::visit([&](const auto& message) { return is_about(message.update); }, order)) return;
    const auto* drop = std::get_if<messages::UpdateDrop>(&order);
    if (drop != nullptr) dropped(now, drop->reason);
    if (std::holds_alternative<messages::UpdateFinish>(order)) session_->is_finishing = true;
    if (std::holds_alternative<messages::UpdateFill>(order)) ++session_->num_filling;
    session_->at = drop != nullptr || std::holds_alternative<messages::UpdateCommit>(order)
                       ? At::kEnding
                       : At::kBusy;
}

void SessionBook::dropped(TimePoint now, const std::string& reason) {
    const bool is_taken_over = reason.ends_with("took over");
    const bool is_mixed = reason.find("arrived among") != std::string::npos;
    if (is_taken_over) {
        if (session_->at != At::kIdle)
            oracle_.fail(fmt::format("session {} is taken over in a call of it", session_->id));
        if (session_->is_unnamed) taken_over_ = session_->id;
        ++num_taken_over;
    } else if (reason.starts_with("a call that may be a part")) {
        if (!session_->is_unnamed)
            oracle_.fail(fmt::format("session {} is given up for a call of none", session_->id));
        session_->is_given_up = true;
        ++num_lacking;
    } else if (is_mixed) {
        session_->is_given_up = true;
        ++num_mixed;
    } else if (session_->at == At::kIdle && !reason.empty()) {  // no call asked for it
        if (now < session_->idle_since + session_->idle_timeout)
            oracle_.fail(fmt::format("session {} is given up before its time", session_->id));
        ++num_expired;
        num_adapters_expired += session_->adapter.empty() ? 0 : 1;
    }
    if (session_->num_unnamed > 0 && !session_->is_finishing)
        untold_losses_[session_->adapter] = session_->id;
}

void SessionBook::stood_alone(const std::string& adapter, std::uint64_t loss) {
    if (loss == 0 || loss != untold_loss(adapter)) return;
    oracle_.fail(fmt::format("session {} is lost, and a call after it stands alone (P2)", loss));
}

void SessionBook::heard(
    TimePoint now,
    const Pusher::Call& call,
    const messages::UpdateReply& reply,
    const Base& base,
    const std::string& adapter
) {
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    const auto* commit = std::get_if<messages::CommitWeights>(&call);
    const auto* drop = std::get_if<messages::DropStage>(&call);
    const bool is_unnamed = unnamed != nullptr || (commit != nullptr && commit->unnamed) ||
                            (drop != nullptr && drop->unnamed);
    if (is_unnamed && (!reply.ok || drop != nullptr)) told(call, adapter);
    if (!reply.ok) return;
    if (const auto* begin = std::get_if<messages::BeginUpdate>(&call))
        return begun(now, *begin, reply, base);
    if (const auto* bucket = std::get_if<messages::UpdateBucket>(&call))
        return filled(
            now, {bucket->session, false, name_of_bytes(bucket->source), bucket->label, ""}, reply
        );
    if (unnamed != nullptr) {
        const messages::UpdateSpec& part = unnamed->update;
        return filled(now, {0, true, name_of_bytes(part.source), part.label, part.adapter}, reply);
    }
    if (commit != nullptr) return committed(*commit, reply);
}

// A caller that brings an adapter learns of a loss of that adapter's alone, unless its call names
// none.
void SessionBook::told(const Pusher::Call& call, const std::string& adapter) {
    const auto* unnamed = std::get_if<messages::UpdateWeights>(&call);
    if (unnamed != nullptr && !unnamed->update.adapter.empty()) {
        untold_losses_.erase(adapter);
    } else {
        untold_losses_.clear();
    }
}

void SessionBook::begun(
    TimePoint now,
    const messages::BeginUpdate& call,
    const messages::UpdateReply& reply,
    const Base& base
) {
    if (session_ && session_->at != At::kEnding)
        oracle_.fail(fmt::format("session {} is open beside {}", reply.session, session_->id));
    const std::string& adapter = call.update.adapter;
    WeightsId weights{};
    if (call.update.partial && !adapter.empty()) {
        const AdapterBook& adapters = oracle_.adapters();
        weights = adapters.weights_of(adapters.newest(adapter)).value_or(WeightsId{});
    } else if (call.update.partial && base.is_whole) {
        weights = oracle_.weights_at(base.serving);
    }
    session_ = {
        .id = reply.session,
        .adapter = adapter,
        .label = call.update.label,
        .weights = weights,
        .idle_timeout = milliseconds(call.idle_timeout_ms),
        .idle_since = now,
        .is_unnamed = call.unnamed,
        .must_be_named = call.unnamed && took_over(reply, taken_over_),
    };
    ++num_begun;
    num_adapters_begun += adapter.empty() ? 0 : 1;
}

void SessionBook::filled(TimePoint now, const Bucket& bucket, const messages::UpdateReply& reply) {
    // A call that had waited for this one was refused in the same turn, which ended the session.
    if (session_ && reply.session == session_->id && session_->is_given_up) return;
    if (!session_ || reply.session != session_->id || session_->at != At::kBusy)
        return oracle_.fail(fmt::format("a bucket for session {}, which is over", reply.session));
    if (bucket.session != 0 && bucket.session != session_->id)
        return oracle_.fail(
            fmt::format("a bucket for session {} is in session {}", bucket.session, session_->id)
        );
    if (bucket.is_unnamed && (!session_->is_unnamed || session_->must_be_named))
        return oracle_.fail(fmt::format("a bucket that names none is in session {}", session_->id));
    if (!bucket.adapter.empty() && bucket.adapter != session_->adapter)
        return oracle_.fail(fmt::format(
            "a bucket for adapter '{}' is in session {} of '{}' (P2)",
            bucket.adapter,
            session_->id,
            session_->adapter
        ));
    if (!bucket.label.empty()) session_->label = bucket.label;
    session_->num_unnamed += bucket.is_unnamed ? 1 : 0;
    num_unnamed += bucket.is_unnamed ? 1 : 0;
    // The same bytes again change nothing.
    if (session_->bytes.insert(bucket.bytes).second)
        session_->weights = with_bytes(session_->weights, bucket.bytes);
    // The next bucket, which waited for its turn, may have been ordered already.
    if (--session_->num_filling == 0) session_->at = At::kIdle;
    session_->idle_since = now;
    ++num_buckets;
}

void SessionBook::committed(
    const messages::CommitWeights& call, const messages::UpdateReply& reply
) {
    if (!is_about(committed_update_)) return;  // the commit of a stage
    const std::string digest = digest_of_weights(session_->weights);
    const std::string& label = call.label.empty() ? session_->label : call.label;
    if (reply.adapter != session_->adapter)
        return oracle_.fail(fmt::format(
            "session {} of adapter '{}' is committed as one of '{}'",
            session_->id,
            session_->adapter,
            reply.adapter
        ));
    if (committed_weights(reply.epoch) != session_->weights || reply.digest != digest) {
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
    num_adapters_committed += session_->adapter.empty() ? 0 : 1;
}

// An adapter's version has its session's number.
std::optional<WeightsId> SessionBook::committed_weights(Epoch version) const {
    if (session_->adapter.empty()) return oracle_.weights_at(version);
    if (raw(version) != static_cast<std::int64_t>(session_->id)) return std::nullopt;
    return oracle_.adapters().weights_of(version);
}

void SessionBook::check(TimePoint now) {
    if (!session_ || session_->at != At::kIdle) return;
    if (now > session_->idle_since + session_->idle_timeout + kTickSlack)
        oracle_.fail(fmt::format("nobody goes on with session {}, and it is held", session_->id));
}

}  // namespace pitstop::sim
