#include "tests/sim/pusher.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace pitstop::sim {
namespace {

using std::chrono::microseconds;

constexpr std::string_view kOtherDigest = "00112233445566778899aabbccddeeff";  // of no version

}  // namespace

const std::string& name_of_bytes(const messages::WeightSource& source) {
    return source.kind == messages::SourceKind::kIpc ? source.handles.begin()->second
                                                     : source.group;
}

Pusher::Pusher(Random& random, std::string name, bool is_dependable)
    : random_(random), name_(std::move(name)), is_dependable_(is_dependable) {
    num_buckets_left_ = random_.between(0, 4);
    num_calls_left_ = std::numeric_limits<std::int64_t>::max();
    if (is_dependable_) return;
    if (random_.once_in(3)) num_calls_left_ = random_.between(1, 5);
    is_slow_ = random_.once_in(5);
    is_unnamed_ = random_.once_in(3);
}

Duration Pusher::pause() {
    return microseconds(is_slow_ ? random_.between(10'000, 90'000) : random_.between(1, 3000));
}

std::int64_t Pusher::timeout_ms() {
    if (is_dependable_) return 2000;
    return random_.once_in(8) ? 3 : 300;
}

std::optional<Pusher::Call> Pusher::next(const Seen& seen) {
    if (at_ == At::kOver || num_calls_left_-- == 0) return std::nullopt;
    if (at_ == At::kBegin) return begin(seen);
    if (at_ == At::kBuckets && num_buckets_left_ > 0) return bucket();
    at_ = At::kEnd;
    return end(seen);
}

void Pusher::heard(const messages::UpdateReply& reply) {
    was_refused_ = !reply.ok;
    if (at_ == At::kBegin) {
        if (reply.ok) {
            at_ = At::kBuckets;
            session_ = reply.session;
        } else if (!is_dependable_ && random_.once_in(4)) {
            at_ = At::kOver;  // it gives up; others may try again
        }
    } else if (at_ == At::kEnd) {
        has_committed_ = reply.ok;
        at_ = is_dependable_ && !reply.ok ? At::kBegin : At::kOver;
    } else if (!reply.ok) {
        // Most trainers know that they must stop. Further calls of the other trainers must be
        // refused.
        if (is_dependable_) {
            at_ = At::kBegin;
        } else if (!random_.once_in(4)) {
            at_ = At::kOver;
        }
    }
}

messages::BeginUpdate Pusher::begin(const Seen& seen) {
    messages::BeginUpdate begin;
    begin.update.source.kind = messages::SourceKind::kBuckets;
    if (!is_unnamed_ || random_.once_in(2)) begin.update.label = name_;
    begin.idle_timeout_ms = is_dependable_ ? 2000 : random_.between(5, 60);
    begin.take_over = is_dependable_ ? was_refused_ : random_.once_in(4);
    begin.unnamed = is_unnamed_;
    begin.holder = name_;
    must_name_ = begin.take_over;
    if (is_dependable_) return begin;
    // Any policy but kAbort, which would end other clients' requests.
    begin.update.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 2));
    begin.update.partial = random_.once_in(3);
    if (random_.once_in(3)) begin.update.base_digest = seen.serving_digest;
    if (random_.once_in(20)) begin.update.base_digest = kOtherDigest;
    return begin;
}

Pusher::Call Pusher::bucket() {
    messages::UpdateBucket bucket;
    bucket.session = session();
    const std::string bytes = fmt::format("ipc://@{}-{}", name_, num_buckets_sent_++);
    --num_buckets_left_;
    if (is_dependable_ || !random_.once_in(8)) {
        bucket.source.kind = messages::SourceKind::kIpc;
        bucket.source.handles = {{"CPU-0-0", bytes}};
    } else {  // a replica refuses it if the session has named no base
        bucket.source.kind = messages::SourceKind::kDistributed;
        bucket.source.group = bytes;
        bucket.source.format = messages::TensorFormat::kSparse;
        bucket.source.tensors = {{.name = "layer.weight", .dtype = "BF16", .shape = {8, 8}}};
        bucket.source.num_updates = {1};
    }
    // A bucket with a wrong number goes into another trainer's session, so it has no label.
    const bool is_labelled = !is_dependable_ && random_.once_in(2) &&
                             (bucket.session == 0 || bucket.session == session_);
    if (is_labelled) bucket.label = name_;
    if (names_session()) return bucket;
    messages::UpdateWeights unnamed;
    unnamed.update.label = bucket.label;
    unnamed.unnamed = true;
    unnamed.update.partial = true;
    unnamed.update.source.kind = messages::SourceKind::kIpc;
    unnamed.update.source.handles = {{"CPU-0-0", bytes}};
    return unnamed;
}

// Some trainers must name their session, and forget to.
bool Pusher::names_session() { return !is_unnamed_ || (must_name_ && !random_.once_in(4)); }

Pusher::Call Pusher::end(const Seen& seen) {
    const bool is_named = names_session();
    if (!is_dependable_ && random_.once_in(8))
        return messages::DropStage{.session = is_named ? session() : 0, .unnamed = !is_named};
    messages::CommitWeights commit;
    commit.session = is_named ? session() : 0;
    commit.unnamed = !is_named;
    if (random_.once_in(2)) commit.digest = seen.open_digest;
    if (is_dependable_) return commit;
    if (random_.once_in(12)) commit.digest = kOtherDigest;
    if (random_.once_in(4)) commit.label = name_ + "-final";
    return commit;
}

// The trainer's own session; sometimes 0 (whichever is open), sometimes another number.
std::uint64_t Pusher::session() {
    if (is_dependable_ || random_.between(1, 8) > 2) return session_;
    return random_.once_in(2) ? 0 : static_cast<std::uint64_t>(random_.between(1, 3));
}

}  // namespace pitstop::sim
