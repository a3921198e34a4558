// The admin door: passes each control call to every replica, and returns one answer.
//
// A call goes to the replicas (call_fanout.h), drives the update (admin_updates.h), or waits for
// the update (collected_update.h). Every caller is answered once: with its reply, or by its
// deadline with an error.
//
// Pure: messages and the time go in; decisions come out of take_output().
// Thread:  the loop thread only.
// Bounded: kCallsMax open calls of each kind.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/calls.h"
#include "messages/codec.h"
#include "messages/keep.h"
#include "messages/update_orders.h"
#include "tokenizer_proc/admin_outbox.h"
#include "tokenizer_proc/admin_updates.h"
#include "tokenizer_proc/call_fanout.h"
#include "tokenizer_proc/collected_update.h"
#include "tokenizer_proc/door_facts.h"
#include "tokenizer_proc/held_calls.h"
#include "tokenizer_proc/replica_hellos.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/tree_identity.h"
#include "tokenizer_proc/unfinished.h"
#include "tokenizer_proc/update_coordinator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// The machine of a client: only a client on this machine can share memory with the workers.
enum class ClientPlace { kHere, kElsewhere };

class Admin {
  public:
    // The result of an abort: an entry per given id (if all are aborted: per open request), and the
    // requests that will end.
    struct Aborted {
        std::vector<messages::AbortResult> results{};
        std::map<OpenId, ReplicaId> ending{};  // the ending requests, and the replica of each
    };

    using Order = AdminOutbox::Order;
    using Answer = AdminOutbox::Answer;
    struct AbortAsked {
        AdminCaller caller{};
        TimePoint deadline{};
        messages::Abort call{};
    };
    // Decisions, to be executed in this order.
    struct Out {
        // The version that serves from the start; then each new version, before its commit is
        // ordered, and each new label. Must be on record before the decisions below are executed.
        std::vector<ServedVersion> serves{};
        // The unfinished work of callers, if it changed; must be on record like a version.
        std::optional<Unfinished> unfinished{};
        std::vector<Order> orders{};
        std::vector<Answer> answers{};
        std::vector<AbortAsked> aborts{};  // each must be followed by aborted()
        // If shutdown was requested: how long open requests may still run.
        std::optional<Duration> drain{};
    };
    [[nodiscard]] Out take_output();

    // `served`: the model's names, which no adapter may have.
    Admin(int num_replicas, TreeIdentity identity, std::vector<std::string> served = {});

    // Returns whether the door accepts this type of message; "hello" is handled elsewhere.
    [[nodiscard]] static bool takes(std::string_view type);

    // Call before any call or part whose answer may contain the facts.
    void set_facts(DoorFacts facts) { facts_ = std::move(facts); }

    // Starts a call. Errors, of which the caller must be told: the message is malformed, or too
    // many calls are open.
    Result<> call(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    // Handles a part of an answer. Returns false if the message is not for this door. Errors: the
    // message is malformed.
    Result<bool> dispatch_part(TimePoint now, const messages::Frames& frames);

    // The schedulers agree on the serving version, loaded from `weights_path`. If there are no
    // weights, `lost` describes the version that should have been loaded, if there was one.
    void set_version(
        const ReplicaHellos& hellos,
        const std::string& weights_path,
        const std::optional<messages::LostVersion>& lost
    );

    // Records the previous tree's unfinished work as lost.
    void begin_after(TimePoint now, const Restart& restart) {
        collected_.begin_after(now, restart);
    }

    // With --keep-committed: versions that are committed from now on are written to this directory.
    // REQUIRES: set_version().
    void keep_in(TimePoint now, const std::string& directory) {
        updates_.keep_in(now, directory, fanout_.tp());
    }

    // Loads again the adapters that were loaded before a restart, each from its directory if that
    // still has the same tensors and configuration. REQUIRES: set_version(); no call was made yet.
    void bring_back(TimePoint now, ReturningAdapters::Args adapters);
    [[nodiscard]] bool is_bringing_back() const { return updates_.is_bringing_back(); }

    // Records the result of an abort.
    void aborted(const AbortAsked& asked, Aborted what);
    // Records that a request has ended, and that its last chunk was sent.
    void request_ended(OpenId request) { fanout_.request_ended(request); }

    // Acts on deadlines.
    void tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const {
        return std::min(fanout_.next_deadline(), collected_.next_deadline());
    }

    // Answers every open call with this error, because the tree is shutting down.
    void fail_all(const Error& error);

    // Returns the version that every replica serves.
    [[nodiscard]] const ServedVersion& version() const { return updates().version(); }
    [[nodiscard]] const UpdateCoordinator& updates() const { return updates_.coordinator(); }

    // Returns whether every replica has had weights to serve: from the start, or since the first
    // complete update.
    [[nodiscard]] bool has_had_weights() const { return updates_.has_had_weights(); }

  private:
    template <class Message>
    Result<> receive_call(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    // ---- admin.cpp: the effect of each call ----
    // The default: the call goes to every replica, or drives the current update.
    template <class Message>
    Result<> handle(TimePoint now, const std::string& peer, const Message& message);
    Result<> handle(
        TimePoint now, const std::string& peer, const messages::PauseGeneration& message
    );
    Result<> handle(
        TimePoint now, const std::string& peer, const messages::SetWeightLabel& message
    );
    Result<> handle(TimePoint now, const std::string& peer, const messages::Shutdown& message);
    Result<> handle(TimePoint now, const std::string& peer, messages::Abort message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::UpdateWeights& message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::RefusedPart& message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::GetWeights& message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::WeightDigests& message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::InitGroup& message);
    Result<> handle(TimePoint now, const std::string& peer, const messages::DestroyGroup& message);
    // ---- admin_parts.cpp: the effect of each answer ----
    template <class Part>
    void handle_part(TimePoint now, Part part);
    void handle_part(TimePoint now, const messages::UpdatePart& part);
    void handle_part(TimePoint, messages::UpdateWaits waits) {
        updates_.record_awaited(std::move(waits));
    }
    void handle_part(TimePoint, messages::WorkerTensor part) {
        fanout_.handle_piece(std::move(part));
    }
    void handle_part(TimePoint now, const messages::WorkerKept& part) {
        updates_.record_kept(now, part);
    }
    void handle_part(TimePoint now, messages::ReplicaStanding standing) {
        collected_.handle_standing(now, std::move(standing));
    }
    // Answers the caller, because all parts have arrived.
    template <class Part>
    void finish(TimePoint now, const AdminCaller& caller, std::vector<Part> parts);
    void finish(
        TimePoint now, const AdminCaller& caller, std::vector<messages::ReplicaStatus> parts
    );
    void finish(TimePoint now, const AdminCaller& caller, std::vector<messages::AdapterPart> parts);

    template <class Message>
    static constexpr bool kPublishes =
        messages::CallOf<Message>::kOnCollection == messages::OnCollection::kPublishes;
    template <class Message>
    static constexpr bool kBringsWeights = std::is_same_v<Message, messages::UpdateWeights> ||
                                           std::is_same_v<Message, messages::UpdateBucket>;
    template <class Message>
    HeldCall held_call(TimePoint now, const std::string& peer, Message message);
    // Starts a call. Its rule for collections (OnCollection) is applied first.
    template <class Message>
    Result<> start(TimePoint now, const std::string& peer, Message message);
    template <class Message>
    [[nodiscard]] bool replaces_collection(const Message& message) const;
    // Returns whether the call may be a part of a version whose calls name no session.
    [[nodiscard]] bool may_be_a_part(const messages::UpdateWeights& call) const;
    [[nodiscard]] static bool may_be_a_part(const messages::UpdateBucket& call) {
        return call.session == 0;
    }
    template <class Message>
    [[nodiscard]] static bool may_be_a_part(const Message&) {
        return false;
    }
    // Returns the same of a call that cannot be read. One that names an adapter can be a part only
    // of the session for that adapter.
    [[nodiscard]] bool may_be_an_unread_part(const messages::Frames& frames) const;

    TreeIdentity identity_;
    std::vector<std::string> served_;
    Out out_{};  // without the output of the members below
    DoorFacts facts_{};
    Unfinished said_unfinished_{};  // the latest value of Out::unfinished
    AdminOutbox outbox_{};
    CallFanout fanout_;
    AdminUpdates updates_;
    CollectedUpdate collected_;
};

}  // namespace pitstop::tokenizer
