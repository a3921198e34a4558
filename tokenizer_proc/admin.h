// The admin door: control calls go to every replica, and one answer comes back.
//
// A call that waits for other processes is a row of one table (open_calls.h); an update is a
// transaction (update_coordinator.h). Every caller is answered once: with its reply, or with an
// error by its deadline.
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
#include "messages/greeting.h"
#include "messages/keep.h"
#include "messages/update_orders.h"
#include "tokenizer_proc/answer_notes.h"
#include "tokenizer_proc/held_calls.h"
#include "tokenizer_proc/keep_coordinator.h"
#include "tokenizer_proc/lost_calls.h"
#include "tokenizer_proc/open_calls.h"
#include "tokenizer_proc/replica_standings.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/returning_adapters.h"
#include "tokenizer_proc/tree_identity.h"
#include "tokenizer_proc/unfinished.h"
#include "tokenizer_proc/update_coordinator.h"
#include "tokenizer_proc/update_history.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Whether a client can share memory with the workers: one at a tcp door cannot.
enum class ClientPlace { kHere, kElsewhere };

class Admin {
  public:
    // What the door itself knows, for `status`.
    struct DoorFacts {
        std::string server{};  // "pitstop 0.1.0"
        std::string model{};   // name of the served model
        double uptime_s = 0;
        std::int64_t clients = 0;
        std::int64_t open_requests = 0;
        std::int64_t refused_total = 0;
        std::vector<messages::ListenerStatus> listeners{};
    };
    // The result of an abort: per given id (for all: per open request), and which
    // requests will end.
    struct Aborted {
        std::vector<messages::AbortResult> results{};
        std::map<OpenId, ReplicaId> ending{};  // and the replica of each
    };

    struct Order {
        std::optional<ReplicaId> replica{};  // nothing: all requests
        messages::Frames frames{};
    };
    struct Answer {
        std::string peer{};  // at the admin door
        messages::Frames frames{};
    };
    struct AbortAsked {
        AdminCaller caller{};
        TimePoint deadline{};
        messages::Abort call{};
    };
    // Decisions, to be carried out in this order.
    struct Out {
        // The version that serves from the start, and each change: a new version, before its commit
        // is ordered, or a new label. The version is on record before anything below happens.
        std::vector<ServedVersion> serves{};
        // The callers' unfinished work, if it changed: on record like a version.
        std::optional<Unfinished> unfinished{};
        std::vector<Order> orders{};
        std::vector<Answer> answers{};
        std::vector<AbortAsked> aborts{};  // each must be followed by aborted()
        // Set when shutdown was requested: how long open requests may still run.
        std::optional<Duration> drain{};
    };
    [[nodiscard]] Out take_output() {
        say_unfinished();
        return std::exchange(out_, {});
    }

    // Deadlines of calls without a timeout. A flush or pause that waits for requests may take long.
    static constexpr auto kStatusTimeout = std::chrono::seconds(5);
    static constexpr auto kControlTimeout = std::chrono::minutes(10);
    static constexpr auto kReadTimeout = std::chrono::minutes(1);
    static constexpr auto kGroupTimeout = std::chrono::minutes(5);
    // A replica's own answer to a late call is more precise than ours, so it gets this much longer.
    static constexpr auto kReplicaGrace = std::chrono::milliseconds(200);

    Admin(int num_replicas, TreeIdentity identity);

    // Returns whether the door accepts messages of this type; "hello" is handled elsewhere.
    [[nodiscard]] static bool takes(std::string_view type);

    // Call this before any call or part whose answer may contain the facts.
    void set_facts(DoorFacts facts) { facts_ = std::move(facts); }

    // Starts a call. Errors: the message is malformed, or too many calls are open; the caller must
    // be told.
    Result<> call(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    // Handles a part of an answer. Returns false if the message is not for this door. Errors: it
    // is malformed.
    Result<bool> dispatch_part(TimePoint now, const messages::Frames& frames);

    // The schedulers agree on the serving version, loaded from that directory. Without weights,
    // `lost` describes the version that should have been loaded, if any.
    void set_version(
        const messages::SchedulerHello& hello,
        const std::string& weights_path,
        const std::optional<messages::LostVersion>& lost
    );

    // Records that unfinished work of the previous tree is lost.
    void begin_after(TimePoint now, const Restart& restart);

    // With --keep-committed, versions committed from now on are written to this directory.
    // REQUIRES: set_version().
    void keep_in(TimePoint now, const std::string& directory);

    // Loads the adapters that were loaded before a restart, each from its directory, if that has
    // the same tensors and configuration. REQUIRES: set_version(); no call was made before.
    void bring_back(TimePoint now, ReturningAdapters::Args adapters);
    [[nodiscard]] bool is_bringing_back() const { return !returning_.is_done(); }

    // Records the result of an abort.
    void aborted(const AbortAsked& asked, Aborted what);
    // Records that a request has ended, and that its last chunk was sent.
    void request_ended(OpenId request);

    // Acts on deadlines.
    void tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const;

    // The tree is shutting down: answers every open call with this error.
    void fail_all(const Error& error);

    // Returns the version that every replica serves.
    [[nodiscard]] const ServedVersion& version() const { return updates_.version(); }
    [[nodiscard]] const UpdateCoordinator& updates() const { return updates_; }

    // Returns whether every replica has or had weights to serve: from the start, or from the first
    // complete update on.
    [[nodiscard]] bool has_had_weights() const { return has_had_weights_; }

  private:
    template <class Message>
    Result<> receive_call(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    // ---- admin.cpp: what each call does ----
    // The usual case: the call goes to every replica, or drives the current update.
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
    // Opens the call, and passes its order on under its number.
    template <class Message, class Passed>
    Result<> pass_on(
        TimePoint now,
        const std::string& peer,
        const Message& message,
        Passed order,
        OpenCalls::Awaited&& awaited,
        std::optional<ReplicaId> to = std::nullopt
    );
    // Lets a call act on the current update, and carries out the decisions.
    template <class Drive>
    void drive(TimePoint now, Drive what) {
        UpdateCoordinator::Out out;
        what(out);
        carry_out(now, std::move(out));
    }

    // ---- admin_parts.cpp: what each answer does ----
    template <class Part>
    void handle_part(TimePoint now, Part part);
    void handle_part(TimePoint now, const messages::UpdatePart& part);
    void handle_part(TimePoint now, messages::UpdateWaits waits);
    void handle_part(TimePoint now, messages::WorkerTensor part);
    void handle_part(TimePoint now, const messages::WorkerKept& part);
    void handle_part(TimePoint now, messages::ReplicaStanding standing) {
        handle_standing(now, std::move(standing));
    }
    // All parts have arrived: answers the caller.
    template <class Part>
    void finish(TimePoint now, const AdminCaller& caller, std::vector<Part> parts);
    void finish(
        TimePoint now, const AdminCaller& caller, std::vector<messages::ReplicaStatus> parts
    );

    template <class Message>
    void answer(const AdminCaller& caller, Message message) {
        message.call = caller.call;
        notes_.add_to(message, caller);
        out_.answers.push_back({caller.peer, encode(message)});
    }
    void answer_error(const AdminCaller& caller, const Error& error);
    template <class Message>
    void give_order(const Message& message, std::optional<ReplicaId> replica = std::nullopt) {
        out_.orders.push_back({replica, encode(message)});
    }
    void carry_out(TimePoint now, UpdateCoordinator::Out&& out);
    void say_version();
    void say_unfinished();
    void bring_back_next(TimePoint now);

    // ---- admin_collected.cpp: calls without a session that become one update ----
    template <class Message>
    static constexpr bool kPublishes =
        messages::CallOf<Message>::kOnCollection == messages::OnCollection::kPublishes;
    template <class Message>
    static constexpr bool kBringsWeights = std::is_same_v<Message, messages::UpdateWeights> ||
                                           std::is_same_v<Message, messages::UpdateBucket>;
    [[nodiscard]] static bool publishes(const HeldCall& call);
    [[nodiscard]] bool may_be_too_late() const;
    [[nodiscard]] bool must_wait(const HeldCall& call) const;
    [[nodiscard]] bool must_wait_for_update(const HeldCall& call) const;
    template <class Message>
    HeldCall held_call(TimePoint now, const std::string& peer, Message message);
    void start_held(TimePoint now);
    void tell_late(TimePoint now, const HeldCall& call);
    void expire_held(TimePoint now);

    // Starts a call. Its rule for collections (OnCollection) is applied before the call itself.
    template <class Message>
    Result<> start(TimePoint now, const std::string& peer, Message message);
    [[nodiscard]] Result<> check_none_is_collected(TimePoint now) const;
    [[nodiscard]] bool lets_generation_go_on(const messages::ContinueGeneration& call) const;
    [[nodiscard]] bool lets_generation_go_on(const messages::ResumeMemory& call) const;
    template <class Message>
    [[nodiscard]] bool replaces_collection(const Message& message) const;
    [[nodiscard]] bool joins_collection(const messages::UpdateWeights& message) const;
    Result<> join_collection(
        TimePoint now, const std::string& peer, const messages::UpdateWeights& message
    );
    void name_collection(const std::string& peer, const messages::SetWeightLabel& message);
    enum class Closing { kCommit, kDrop };
    Result<> close_collection(TimePoint now, Closing how, HeldCall then);
    void finish_closing(TimePoint now);
    void handle_standing(TimePoint now, messages::ReplicaStanding standing);

    // Returns whether the call may be a part of a version whose calls name no session.
    [[nodiscard]] static bool may_be_a_part(const messages::UpdateWeights& call);
    [[nodiscard]] static bool may_be_a_part(const messages::UpdateBucket& call) {
        return call.session == 0;
    }
    template <class Message>
    [[nodiscard]] static bool may_be_a_part(const Message&) {
        return false;
    }
    void lose_part(TimePoint now, const Error& why);
    void miss_part(TimePoint now, const Error& why);
    // Refuses the call that would let generation continue, and drops what is collected, if its
    // caller does not know of lost calls.
    Result<> check_loss(TimePoint now, const std::string& peer);
    [[nodiscard]] std::string note_for_pause(TimePoint now);

    int num_replicas_;
    TreeIdentity identity_;
    int tp_ = 1;
    Out out_{};
    DoorFacts facts_{};
    OpenCalls calls_{};
    UpdateCoordinator updates_;
    ServedVersion said_{};          // the last one in Out::serves
    Unfinished said_unfinished_{};  // the last one in Out::unfinished
    std::optional<KeepCoordinator> keep_{};
    ReturningAdapters returning_{};
    std::optional<messages::LostVersion> lost_{};  // until a complete update brings a new version
    UpdateHistory history_{};
    bool has_had_weights_ = false;

    ReplicaStandings standings_;
    HeldCalls held_{};
    bool is_starting_held_ = false;
    // A call that waits while the collected update is being committed or dropped.
    struct ClosingCall {
        Closing how{};
        HeldCall then{};
        std::int64_t num_calls = 0;
        std::optional<messages::UpdateReply> outcome{};
    };
    std::optional<ClosingCall> closing_{};
    LostCalls lost_calls_{updates_, standings_};
    AnswerNotes notes_{};
};

}  // namespace pitstop::tokenizer
