// The weight update under way on this replica: what the door ordered and what the ranks answered.
// The door (tokenizer_proc) drives the update over all replicas; this is one replica's part.
//
//   staged    stage -> ranks vote -> prepared; ready; commit -> ranks swap -> committed
//   session   stage -> opened; fill -> filled, any number of times; finish -> ranks vote ->
//   prepared;
//             ready; commit
//   direct    ready (stand still); stage over the live copy -> prepared; commit
//   rollback  prepared at once (the retained copy is there); ready; commit
//
// Any of them may be dropped until the commit.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/version_digest.h"
#include "messages/weights.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::scheduler {

struct UpdateJob {
    enum class Kind { kStaged, kDirect, kRollback };
    enum class Vote {
        kNotAsked,
        kOpen,      // a session, between two buckets
        kFilling,   // ranks open the session, or take a bucket
        kStaging,   // ranks fill their copies
        kPrepared,  // every rank can swap
        kFailed,    // some rank cannot: only a drop ends the job
    };
    enum class Stand {
        kNotAsked,
        kWaiting,  // for running requests (drain) or for steps in flight (direct)
        kReady,
        kLate,  // it was said that it does not stand; only a drop ends the job
    };
    enum class End { kNone, kCommitting, kDropping };  // ordered; ranks are doing it

    messages::UpdateId id{};
    Kind kind = Kind::kStaged;
    Vote vote = Vote::kNotAsked;
    Stand stand = Stand::kNotAsked;
    End end = End::kNone;

    std::int64_t bucket = 0;  // session: the one ordered last; 0: the opening

    messages::UpdateSpec spec{};
    messages::KvPolicy kv_policy = messages::KvPolicy::kKeep;
    Epoch new_epoch{};
    std::string label{};   // of the new version
    std::string digest{};  // of the new version, once prepared

    bool is_stage_sent = false;                                // workers may have begun to write
    std::vector<messages::RankOutcome> ranks{};                // by rank
    std::vector<std::vector<messages::PartDigest>> digests{};  // by rank
    std::vector<bool> has_voted{};                             // by rank: on what was asked last
    std::vector<bool> has_answered{};                          // by rank: the commit or the drop

    TimePoint stage_deadline = TimePoint::max();
    TimePoint stand_deadline = TimePoint::max();
    std::optional<TimePoint> standing_since{};  // direct: no step has run since
    TimePoint commit_ordered{};
    std::string drop_reason{};
    messages::ReplicaOutcome outcome{};  // without ranks

    UpdateJob(messages::UpdateId update, Kind update_kind, int tp);

    // Every rank is asked again.
    void ask(Vote what);
    [[nodiscard]] bool have_all_voted() const;
    [[nodiscard]] bool have_all_answered() const;
    // "rank 0, rank 2"
    [[nodiscard]] std::string who_has_not_voted() const;

    // Every problem of every rank that voted no, as far as one message goes.
    // REQUIRES: a rank has voted no.
    [[nodiscard]] Error error_of_votes() const;
    // Those that are still carrying the commit or the drop out.
    [[nodiscard]] std::vector<Rank> ranks_without_answer() const;

    // Adds up the ranks' digests and compares them with what was declared.
    // REQUIRES: every rank voted ok.
    // Errors: kDataLoss, naming tensors and ranks.
    [[nodiscard]] Result<std::string> verified_digest() const;

    // Whether a rank may have written over the live weights.
    [[nodiscard]] bool may_be_torn() const;

    // How long the commit took, and for how long no step could run. REQUIRES: have_all_answered().
    void record_commit(TimePoint now);
    [[nodiscard]] messages::ReplicaOutcome full_outcome() const;
};

}  // namespace pitstop::scheduler
