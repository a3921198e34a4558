// Joins the ranks of a replica (messages/ranks.h). Decides which rank may join and from which
// machine, sends the parts of all ranks to each, and names missing ranks. A state machine without
// I/O or a clock: its output is a list of messages to send ("letters").
//
// The launcher watches ranks on the head's machine, and ends the tree if one dies. Only this class
// watches ranks of other machines: losing one ends the replica.
//
// Thread:  the loop thread only.
// Bounded: one part per rank, of kRankPartBytesMax.
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
        std::string peer{};     // the sender's identity
        std::string key{};      // the sender's public key; empty: a rank of this machine
        std::string address{};  // the sender's address; empty: this machine
        int connection = -1;    // the descriptor of the sender's connection
    };
    struct Letter {
        std::string peer{};
        messages::Frames frames{};
    };

    // REQUIRES: args.tp % args.nodes == 0.
    explicit RankMeeting(Args args);

    // Gives the rank its place, or tells it why not. Errors, which the rank is told as well:
    // kUnsupported (another protocol or build); kInvalidArgument (another --tp or --nodes, a rank
    // of another node, other settings); kAlreadyExists (the rank has joined, its node is another
    // machine, or the sender joined as another rank).
    Result<> join(const Sender& sender, messages::RankJoin join);
    // Returns the errors of dismissed ranks, which joined before the head's own ranks with
    // different settings. Their places are free again.
    [[nodiscard]] std::vector<Error> take_dismissed();
    // Accepts the rank's part of a meeting. Errors: kFailedPrecondition if no rank with that
    // identity has joined.
    Result<> bring(const std::string& peer, messages::RankPart part, TimePoint now);
    // Ends a meeting if a part has waited for longer than its limit.
    void end_late(TimePoint now);
    // Returns when end_late() has work; nothing if no part waits.
    [[nodiscard]] std::optional<TimePoint> deadline() const;

    // The rank is gone. If it had joined, waiting ranks are told, and no further meeting takes
    // place. A rank of another machine that leaves before all have met only frees its place.
    void lose(Rank rank, std::string_view why);
    // Tells ranks of other machines that the replica ends; after an error, tells all ranks. An
    // earlier failure to meet counts as an error.
    void end(const messages::Verdict& asked);

    [[nodiscard]] std::optional<Rank> rank_of(std::string_view peer) const;
    // Returns the identity of the rank that joined on that descriptor; nothing if it has left.
    [[nodiscard]] std::optional<std::string> peer_on(int connection) const;
    // Returns whether the rank has a place, even if the rank is lost.
    [[nodiscard]] bool is_there(Rank rank) const {
        return members_.at(static_cast<std::size_t>(raw(rank))).has_value();
    }
    // Returns whether the rank has joined with that key.
    [[nodiscard]] bool has(Rank rank, std::string_view key) const;
    // Returns whether all ranks have met once; before, a place may become free again.
    [[nodiscard]] bool have_met() const { return meeting_ > 1; }
    // Returns why the replica cannot continue: a rank of another machine is lost. Returns nothing
    // while it can.
    [[nodiscard]] const std::optional<Error>& loss() const { return loss_; }
    // Returns "rank 1", with its machine if there are several.
    [[nodiscard]] std::string name_of(Rank rank) const;
    // Fills in each rank's machine, if there are several.
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
    // Answers all waiting and later parts with the error.
    void fail(Error error);
    void answer(Member& member, const messages::RankMet& parts);

    Args args_;
    std::vector<std::optional<Member>> members_;  // by rank
    std::vector<Letter> letters_{};
    std::vector<Error> dismissed_{};
    std::int64_t meeting_ = 1;
    std::optional<Error> failure_{};  // why all later meetings fail
    std::optional<Error> loss_{};
    bool is_over_ = false;
};

}  // namespace pitstop::scheduler
