// The admin door: control calls go to every replica, and one answer comes back.
//
// Status, pause, continue, flush, relabel and memory are a row each of the same table (fan_out.h);
// an update is a transaction (update_coordinator.h); an abort waits for the requests' last chunks;
// reads of weights collect pieces (weight_reads.h). Whatever the call, its caller is answered once:
// with its reply, or with an error by its deadline.
//
// Pure but for its ports: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: kCallsMax open calls of each kind.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/calls.h"
#include "messages/codec.h"
#include "messages/control.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/memory.h"
#include "messages/status.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"
#include "tokenizer_proc/collected_calls.h"
#include "tokenizer_proc/fan_out.h"
#include "tokenizer_proc/group_call.h"
#include "tokenizer_proc/keep_coordinator.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/tree_identity.h"
#include "tokenizer_proc/update_coordinator.h"
#include "tokenizer_proc/weight_reads.h"

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

// Whether a client can share memory with the workers: one at a tcp door cannot.
enum class ClientPlace { kHere, kElsewhere };

class Admin {
  public:
    // What an abort did, per id given (all: per open request), and which requests will end.
    struct Aborted {
        std::vector<messages::AbortResult> results{};
        std::map<OpenId, ReplicaId> ending{};  // and where each runs
    };
    struct Ports {
        std::function<void(const std::string& peer, messages::Frames)> reply{};
        std::function<void(const messages::Frames&)> to_all_replicas{};
        std::function<void(ReplicaId, const messages::Frames&)> to_replica{};
        // Fills in what the door itself knows: names, clients, counts.
        std::function<void(messages::StatusReply&)> describe{};
        // Ends the requests of those ids (null: all) with finish.reason abort.
        std::function<Aborted(const std::vector<std::string>* rids, const std::string& message)>
            abort{};
        // What serves from the start, and each change: another version, of which the commit is
        // about to be ordered, or another label. Whoever asked is answered after this.
        std::function<void(const ServedVersion&)> serves{};
        // Begins the end of the tree; open requests may run out for so long.
        std::function<void(Duration drain)> shut_down{};
    };
    static constexpr std::size_t kUpdatesShown = 16;  // in status

    // Deadlines of calls that name none. A flush or pause that waits for requests may take long.
    static constexpr auto kStatusTimeout = std::chrono::seconds(5);
    static constexpr auto kControlTimeout = std::chrono::minutes(10);
    static constexpr auto kReadTimeout = std::chrono::minutes(1);
    static constexpr auto kGroupTimeout = std::chrono::minutes(5);
    // A replica's own answer to a late call says more than ours; so it gets this much longer.
    static constexpr auto kReplicaGrace = std::chrono::milliseconds(200);

    Admin(int num_replicas, TreeIdentity identity, Ports ports);

    // Every message type that the door takes, "hello" apart.
    [[nodiscard]] static bool takes(std::string_view type);

    // A call. Errors: it is malformed, or too many are open; the caller is to be told.
    Result<> call(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    // A part of an answer. Errors: it is malformed. False: not a message for here.
    Result<bool> part(TimePoint now, const messages::Frames& frames);

    // The schedulers agree on the version that serves, loaded from that directory. Without weights:
    // `lost` is what was to be loaded, if anything was.
    void set_version(
        const messages::SchedulerHello& hello,
        const std::string& weights_path,
        const std::optional<messages::LostVersion>& lost
    );

    // --keep-committed: what is committed from now on is kept there. REQUIRES: set_version().
    void keep_in(TimePoint now, const std::string& directory);

    // A request has ended, and its last chunk was sent.
    void request_ended(OpenId request);

    // Acts on deadlines.
    void tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const;

    // Every open call gets this error: the tree is going down.
    void fail_all(const Error& error);

    // The version that every replica serves.
    [[nodiscard]] const ServedVersion& version() const { return updates_.version(); }

    // Every replica has or had weights to serve: at once, or from the first complete update on.
    [[nodiscard]] bool has_had_weights() const { return has_had_weights_; }

  private:
    struct AbortCall {
        AdminCaller caller{};
        TimePoint deadline{};
        std::map<OpenId, ReplicaId> ending{};  // their last chunks are to come
        messages::AbortReply reply{};
    };
    template <class Read>
    struct ReadCall {
        AdminCaller caller{};
        TimePoint deadline{};
        Read read;
    };

    template <class Message>
    Result<> take(
        TimePoint now, const std::string& peer, const messages::Frames& frames, ClientPlace place
    );

    template <class Message, class Part>
    Result<> fan_out(
        TimePoint now, const std::string& peer, Message message, FanOut<Part>& calls, Duration most
    );
    Result<> obey(TimePoint now, const std::string& peer, messages::Status message);
    Result<> obey(TimePoint now, const std::string& peer, messages::PauseGeneration message);
    Result<> obey(TimePoint now, const std::string& peer, messages::ContinueGeneration message);
    Result<> obey(TimePoint now, const std::string& peer, messages::FlushCache message);
    Result<> obey(TimePoint now, const std::string& peer, messages::SetWeightLabel message);
    Result<> obey(TimePoint now, const std::string& peer, messages::ReleaseMemory message);
    Result<> obey(TimePoint now, const std::string& peer, messages::ResumeMemory message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::Shutdown& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::Abort& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::UpdateWeights& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::StageWeights& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::BeginUpdate& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::UpdateBucket& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::CommitWeights& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::DropStage& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::RollbackWeights& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::GetWeights& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::WeightDigests& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::InitGroup& message);
    Result<> obey(TimePoint now, const std::string& peer, const messages::DestroyGroup& message);
    template <class Message>
    Result<> drive(
        TimePoint now,
        const std::string& peer,
        const Message& message,
        void (UpdateCoordinator::*what
        )(TimePoint, UpdateCoordinator::Caller, const Message&, UpdateCoordinator::Out&)
    );
    Result<> order_group(
        TimePoint now,
        const AdminCaller& caller,
        std::int64_t timeout_ms,
        messages::WorkerGroup order
    );

    void hear(TimePoint now, messages::ReplicaStatus part);
    void hear(TimePoint now, messages::PausePart part);
    void hear(TimePoint now, messages::ContinuePart part);
    void hear(TimePoint now, messages::FlushPart part);
    void hear(TimePoint now, messages::LabelPart part);
    void hear(TimePoint now, messages::MemoryPart part);
    void hear(TimePoint now, const messages::UpdatePart& part);
    void hear(TimePoint now, messages::UpdateWaits waits);
    void hear(TimePoint now, messages::WorkerTensor part);
    void hear(TimePoint now, messages::WorkerDigests part);
    void hear(TimePoint now, messages::WorkerGrouped part);
    void hear(TimePoint now, const messages::WorkerKept& part);

    template <class Message>
    void answer(const AdminCaller& caller, Message message) {
        message.call = caller.call;
        std::string note = take_note(caller);
        if constexpr (requires { message.verdict; }) put_before(note, message.verdict.message);
        if constexpr (requires { message.error; }) put_before(note, message.error.message);
        ports_.reply(caller.peer, encode(message));
    }
    static void put_before(std::string note, std::string& text) {
        if (!note.empty() && !text.empty()) note += "; ";
        text.insert(0, note);
    }
    void answer_error(const AdminCaller& caller, const Error& error);
    template <class Reply, class Part>
    void answer_parts(typename FanOut<Part>::Ended ended);
    void carry_out(TimePoint now, UpdateCoordinator::Out out);
    void say_version();
    void record(TimePoint now, std::string_view what, const messages::UpdateReply& reply);
    template <class Visit>
    void for_each_fan_out(Visit visit);

    // ---- admin_collected.cpp: calls without a session that become one update ----
    // A call that needs the collected update to be over, or to take effect first.
    struct HeldCall {
        AdminCaller caller{};
        std::int64_t timeout_ms = 0;
        bool replaces_all = false;  // it does not mind what became of the update
        std::function<Result<>(TimePoint now)> obey{};
    };
    [[nodiscard]] bool joins_collection(const messages::UpdateWeights& message) const;
    template <class Message>
    [[nodiscard]] bool must_wait_for_collected(const Message& message) const {
        if (!needs_collected(message)) return false;
        if constexpr (std::is_same_v<Message, messages::UpdateWeights>) {
            if (!is_closing_ && joins_collection(message)) return false;
        }
        // An update may be large, and none begins beside another: it is refused, not held.
        if (is_closing_) return !kReplacesAll<Message>;
        // What waits for the rest of its tensors takes effect with them, not before.
        return updates_.is_collecting() && (!updates_.is_collecting_all() || kReplacesAll<Message>);
    }
    template <class Message>
    Result<> hold(TimePoint now, const std::string& peer, Message message) {
        const AdminCaller caller{peer, message.call};
        return hold(
            now,
            {.caller = caller,
             .timeout_ms = message.timeout_ms,
             .replaces_all = kReplacesAll<Message>,
             .obey = [this, peer, message = std::move(message)](TimePoint at
                     ) { return obey(at, peer, message); }}
        );
    }
    Result<> hold(TimePoint now, HeldCall call);
    void close_collection(TimePoint now, std::int64_t timeout_ms);
    void release_held(TimePoint now);
    void end_pause_that_is_over(TimePoint now);
    // What the answer to a held call says first; empty: it was not held.
    [[nodiscard]] std::string take_note(const AdminCaller& caller);

    int num_replicas_;
    TreeIdentity identity_;
    int tp_ = 1;
    Ports ports_;
    CallId next_call_{1};
    FanOut<messages::ReplicaStatus> statuses_;
    FanOut<messages::PausePart> pauses_;
    FanOut<messages::ContinuePart> continues_;
    FanOut<messages::FlushPart> flushes_;
    FanOut<messages::LabelPart> labels_;
    FanOut<messages::MemoryPart> memories_;
    UpdateCoordinator updates_;
    ServedVersion said_{};  // last, through ports_.serves
    std::optional<KeepCoordinator> keep_{};
    std::optional<messages::LostVersion> lost_{};  // until a complete update has brought another
    struct PastUpdate {
        TimePoint at{};
        messages::UpdateRecord record{};
    };
    std::deque<PastUpdate> past_updates_{};  // the latest kUpdatesShown
    std::int64_t num_updates_ = 0;
    std::int64_t num_updates_failed_ = 0;
    bool has_had_weights_ = false;

    // What is known here of pauses and memory: enough to tell calls that belong together.
    bool is_paused_ = false;
    std::optional<TimePoint> paused_until_{};
    bool is_released_ = false;
    bool is_closing_ = false;       // the collected update is being committed, or dropped
    std::vector<HeldCall> held_{};  // until it is over
    std::optional<messages::UpdateReply> collected_{};
    std::map<std::pair<std::string, CallId>, std::string> notes_{};  // for answers to held calls
    std::vector<AbortCall> aborts_{};
    std::map<CallId, ReadCall<TensorRead>> tensor_reads_{};
    std::map<CallId, ReadCall<DigestRead>> digest_reads_{};
    std::map<CallId, ReadCall<GroupCall>> group_calls_{};
};

}  // namespace pitstop::tokenizer
