#include "tests/sim/pusher.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace pitstop::sim {
namespace {

using std::chrono::microseconds;

constexpr std::string_view kOtherDigest = "00112233445566778899aabbccddeeff";  // of no version
// A dependable trainer of an adapter, for which there may be no room, gives up after so many calls.
constexpr std::int64_t kCallsForAdapter = 30;

}  // namespace

const std::string& name_of_bytes(const messages::WeightSource& source) {
    return source.kind == messages::SourceKind::kIpc ? source.handles.begin()->second
                                                     : source.group;
}

bool are_of_adapter(const std::string& bytes) {
    const std::size_t begin = bytes.find('@');
    return begin != std::string::npos && bytes[begin + 1] == kOfAdapters;
}

Pusher::Pusher(Random& random, std::string name, bool is_dependable, std::string adapter)
    : random_(random),
      name_(std::move(name)),
      is_dependable_(is_dependable),
      adapter_(std::move(adapter)) {
    num_buckets_left_ = random_.between(adapter_.empty() ? 0 : 1, 4);
    num_calls_left_ = std::numeric_limits<std::int64_t>::max();
    if (is_dependable_ && !adapter_.empty()) {
        num_calls_left_ = kCallsForAdapter;
        is_unnamed_ = random_.once_in(2);
    }
    if (is_dependable_) return;
    if (random_.once_in(3)) num_calls_left_ = random_.between(1, 5);
    is_slow_ = random_.once_in(5);
    is_unnamed_ = random_.once_in(adapter_.empty() ? 3 : 2);
    // Its session was begun by a trainer that died.
    if (!adapter_.empty() && is_unnamed_ && random_.once_in(2)) at_ = At::kBuckets;
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
        } else if (!is_dependable_ && random_.once_in(adapter_.empty() ? 4 : 12)) {
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
        } else if (!random_.once_in(adapter_.empty() ? 4 : 2)) {
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
    if (!adapter_.empty()) {
        if (is_dependable_) begin.idle_timeout_ms = 200;
        begin.take_over = begin.take_over && random_.once_in(4);
        begin_adapter(begin.update, seen);
    }
    must_name_ = begin.take_over;
    if (is_dependable_ || !adapter_.empty()) return begin;
    // Any policy but kAbort, which would end other clients' requests.
    begin.update.kv_policy = static_cast<messages::KvPolicy>(random_.between(0, 2));
    begin.update.partial = random_.once_in(3);
    if (random_.once_in(3)) begin.update.base_digest = seen.serving_digest;
    if (random_.once_in(20)) begin.update.base_digest = kOtherDigest;
    return begin;
}

// A part may be made for a version that no longer serves, or for whichever serves.
void Pusher::begin_adapter(messages::UpdateSpec& spec, const Seen& seen) {
    spec.adapter = adapter_;
    spec.adapter_policy = static_cast<messages::AdapterPolicy>(random_.between(0, 2));
    spec.adapter_pinned = random_.once_in(8);
    spec.partial = random_.once_in(2);
    if (!spec.partial) spec.adapter_config = "{}";
    if (random_.once_in(spec.partial ? 2 : 6)) spec.base_digest = seen.serving_digest;
    if (!is_dependable_ && random_.once_in(20)) spec.base_digest = kOtherDigest;
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
    // A bucket that names no adapter joins the session of one.
    if (!adapter_.empty() && !random_.once_in(6)) unnamed.update.adapter = adapter_;
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
