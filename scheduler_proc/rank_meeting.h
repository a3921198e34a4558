// Where the ranks of the replica meet (messages/ranks.h): says who may join, from which machine,
// gives everybody the parts of all, and names who is missing. A state machine without I/O or a
// clock: its letters are what is to be sent.
//
// A rank on the head's machine belongs to the launcher there, which sees its end and ends the tree.
// A rank of another machine has nobody here but this: its loss is the replica's end.
//
// Thread:  the loop thread only.
// Bounded: one part of each rank, of kRankPartBytesMax.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/frames.h"
#include "messages/ranks.h"
#include "messages/status.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::scheduler {

inline constexpr std::string_view kConnectionEnded = "its connection ended";

class RankMeeting {
  public:
    struct Args {
        int tp = 1;
        int nodes = 1;  // machines; tp is a multiple of it
        std::string build{};
    };
    struct Sender {
        std::string peer{};     // its identity
        std::string key{};      // its public key; empty: it is on this machine
        std::string address{};  // where it comes from; empty: this machine
        int connection = -1;    // the descriptor it came on
    };
    struct Letter {
        std::string peer{};
        messages::Frames frames{};
    };

    // REQUIRES: args.tp % args.nodes == 0.
    explicit RankMeeting(Args args);

    // The rank has its place from now on, or is told why it has none.
    // Errors, which it is told, too: kUnsupported (another protocol or build), kInvalidArgument
    // (another --tp or --nodes, a rank of another machine, other settings), kAlreadyExists (the
    // rank, the node from another machine, or the sender as another rank).
    Result<> join(const Sender& sender, messages::RankJoin join);
    // Takes what ranks were told that had come before the head's own and do not fit those: their
    // places are free again.
    [[nodiscard]] std::vector<Error> take_dismissed();
    // Takes its part of a meeting. Errors: kFailedPrecondition, nobody of that identity has joined.
    Result<> bring(const std::string& peer, messages::RankPart part, TimePoint now);
    // Ends a meeting of which a part has waited for longer than it is patient.
    void end_late(TimePoint now);
    // Returns when end_late() has something to do; none where nobody waits.
    [[nodiscard]] std::optional<TimePoint> deadline() const;

    // The rank is gone, if it was there: whoever waits is told, and no meeting takes place any
    // more. A rank of another machine that leaves before all have met has lost its place only,
    // which is free again.
    void lose(Rank rank, std::string_view why);
    // Tells the ranks that the replica ends: those of other machines, and where it is an error,
    // all. It is one, too, where the ranks have failed to meet before.
    void end(const messages::Verdict& asked);

    [[nodiscard]] std::optional<Rank> rank_of(std::string_view peer) const;
    // Returns the identity of who joined on that descriptor; none: nobody that is still there.
    [[nodiscard]] std::optional<std::string> peer_on(int connection) const;
    // Returns whether it has a place, lost or not.
    [[nodiscard]] bool is_there(Rank rank) const {
        return members_.at(static_cast<std::size_t>(raw(rank))).has_value();
    }
    // Returns whether the rank has joined with that key.
    [[nodiscard]] bool has(Rank rank, std::string_view key) const;
    // Returns whether all were there once: until then a place may still become free.
    [[nodiscard]] bool have_met() const { return meeting_ > 1; }
    // Returns why the replica cannot go on: a rank of another machine is lost. Nothing: it can.
    [[nodiscard]] const std::optional<Error>& loss() const { return loss_; }
    // Returns "rank 1", and on which machine where there are several.
    [[nodiscard]] std::string name_of(Rank rank) const;
    // Fills in on which machine each rank is, where there are several.
    void report_to(messages::ReplicaStatus& status) const;

    [[nodiscard]] std::vector<Letter> take_letters();

  private:
    struct Member {
        Sender sender{};
        messages::RankJoin said{};
        bool is_lost = false;
        std::optional<messages::RankPart> part{};
        TimePoint patient_until{};
    };
    [[nodiscard]] Result<> check(const Sender& sender, const messages::RankJoin& join) const;
    [[nodiscard]] Result<> check_place(const Sender& sender, const messages::RankJoin& join) const;
    [[nodiscard]] Result<> check_settings(const messages::RankJoin& join) const;
    void dismiss_others(const messages::RankJoin& measure);
    [[nodiscard]] std::optional<Error> find_out_of_step() const;
    [[nodiscard]] std::string missing() const;
    void finish_if_all_here();
    // Answers whoever waits with it, and whoever comes later.
    void fail(Error error);
    void answer(Member& member, const messages::RankMet& parts);

    Args args_;
    std::vector<std::optional<Member>> members_;  // by rank
    std::vector<Letter> letters_{};
    std::vector<Error> dismissed_{};
    std::int64_t meeting_ = 1;
    std::optional<Error> failure_{};  // of the meetings
    std::optional<Error> loss_{};
    bool is_over_ = false;
};

}  // namespace pitstop::scheduler
