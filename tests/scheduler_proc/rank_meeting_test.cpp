// Which ranks may join the meetings, what they exchange there, and which ranks are named if one is
// missing.
#include "scheduler_proc/rank_meeting.h"

#include "messages/codec.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pitstop::scheduler {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kLimitMs = 1000;
const std::string kBuild = "pitstop 1.2.3";

class RankMeetingTest : public testing::Test {
  protected:
    // A replica of `tp` ranks over `nodes` machines.
    void start(int tp, int nodes) {
        tp_ = tp;
        nodes_ = nodes;
        meeting.emplace(RankMeeting::Args{.tp = tp, .nodes = nodes, .build = kBuild});
    }
    [[nodiscard]] messages::RankJoin join_of(int rank) const {
        messages::RankJoin join;
        join.build = kBuild;
        join.rank = static_cast<Rank>(rank);
        join.tp = tp_;
        join.nodes = nodes_;
        join.node = rank / (tp_ / nodes_);
        join.host = fmt::format("host-{}", join.node);
        join.pid = 100 + rank;
        join.settings = {"--page-size=16", "--compute=bf16"};
        return join;
    }
    static RankMeeting::Sender sender_of(const messages::RankJoin& join) {
        return {
            .peer = fmt::format("peer-{}", raw(join.rank)),
            .key = join.node == 0 ? "" : fmt::format("key-{}", join.node),
            .address = join.node == 0 ? "" : fmt::format("10.0.0.{}", join.node),
            .connection = 20 + raw(join.rank)};
    }
    Result<> join(const messages::RankJoin& join) { return meeting->join(sender_of(join), join); }
    void join_all() {
        for (int rank = 0; rank < tp_; ++rank) ASSERT_TRUE(join(join_of(rank)));
        static_cast<void>(meeting->take_letters());
    }
    Result<> bring(int rank, std::string what, std::vector<std::uint8_t> data, int number = 1) {
        messages::RankPart part;
        part.meeting = number;
        part.what = std::move(what);
        part.num_bytes = static_cast<std::int64_t>(data.size());
        part.limit_ms = kLimitMs;
        part.data.values = std::move(data);
        return meeting->bring(fmt::format("peer-{}", rank), std::move(part), now);
    }
    // Lets all ranks meet once: the tested events come only after that.
    void meet_once() {
        join_all();
        for (int rank = 0; rank < tp_; ++rank) ASSERT_TRUE(bring(rank, "barrier", {}));
        EXPECT_EQ(parts().size(), static_cast<std::size_t>(tp_));
    }
    // The message to each rank, by its peer.
    std::map<std::string, messages::RankMet> parts() {
        std::map<std::string, messages::RankMet> all;
        for (const RankMeeting::Letter& letter : meeting->take_letters()) {
            EXPECT_EQ(letter.frames.type, messages::RankMet::kType);
            EXPECT_EQ(all.count(letter.peer), 0U) << "told twice";
            all[letter.peer] =
                *decode<messages::RankMet>(letter.frames, messages::UnknownFields::kRefuse);
        }
        return all;
    }
    // Checks that the rank gets the refusal, too.
    void expect_refused(const messages::RankJoin& refused, ErrorCode code, std::string_view text) {
        const Result<> joined = join(refused);
        ASSERT_FALSE(joined) << text;
        EXPECT_EQ(joined.error().code, code) << joined.error().message;
        EXPECT_NE(joined.error().message.find(text), std::string::npos) << joined.error().message;
        const auto letters = meeting->take_letters();
        ASSERT_EQ(letters.size(), 1U);
        const auto told =
            decode<messages::RankJoined>(letters[0].frames, messages::UnknownFields::kRefuse);
        ASSERT_TRUE(told);
        EXPECT_EQ(told->verdict.error(), joined.error());
    }

    std::optional<RankMeeting> meeting{};
    TimePoint now{};

  private:
    int tp_ = 1;
    int nodes_ = 1;
};

TEST_F(RankMeetingTest, EveryRankIsGivenThePartsOfAllInRankOrder) {
    start(3, 1);
    join_all();
    for (int number = 1; number <= 2; ++number) {
        ASSERT_TRUE(bring(2, "all_gather", {5, 6}, number));
        ASSERT_TRUE(bring(0, "all_gather", {1, 2}, number));
        EXPECT_TRUE(parts().empty()) << "one is missing";
        ASSERT_TRUE(bring(1, "all_gather", {3, 4}, number));
        const auto all = parts();
        ASSERT_EQ(all.size(), 3U);
        for (const auto& [peer, told] : all) {
            EXPECT_TRUE(told.verdict.is_done());
            EXPECT_EQ(told.meeting, number);
            EXPECT_EQ(told.data.values, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
        }
    }
    EXPECT_EQ(meeting->deadline(), std::nullopt) << "nobody waits";
}

// Other code adds a message's numbers to a time, and uses them as an index, without a further
// check.
TEST_F(RankMeetingTest, P7_APartOrAJoinThatCannotBeIsNoMessage) {
    start(4, 2);
    messages::RankPart part{.meeting = 1, .limit_ms = messages::kRankLimitMsMax};
    EXPECT_EQ(messages::invalid(part), std::nullopt);
    ++part.limit_ms;
    EXPECT_NE(messages::invalid(part), std::nullopt);
    for (const auto& [rank, tp, node, nodes] : std::vector<std::tuple<int, int, int, int>>{
             {-1, 4, 0, 2},
             {4, 4, 1, 2},
             {0, 0, 0, 1},
             {0, 4, 2, 2},
             {0, 4, -1, 2},
             {0, 4, 0, 0}}) {
        messages::RankJoin join = join_of(0);
        EXPECT_EQ(messages::invalid(join), std::nullopt);
        join.rank = static_cast<Rank>(rank);
        join.tp = tp;
        join.node = node;
        join.nodes = nodes;
        EXPECT_NE(messages::invalid(join), std::nullopt) << rank << " " << node;
    }
}

TEST_F(RankMeetingTest, ARankThatMayNotJoinIsToldWhy) {
    start(4, 2);
    ASSERT_TRUE(join(join_of(0)));
    static_cast<void>(meeting->take_letters());
    messages::RankJoin other = join_of(2);
    other.protocol = 7;
    expect_refused(other, ErrorCode::kUnsupported, "speaks protocol 7");
    other = join_of(2);
    other.build = "pitstop 0.9";
    expect_refused(other, ErrorCode::kUnsupported, "it is pitstop 0.9, the head is pitstop 1.2.3");
    other = join_of(2);
    other.nodes = 4;
    expect_refused(other, ErrorCode::kInvalidArgument, "--nodes 4, the head with --tp 4 --nodes 2");
    other = join_of(1);
    other.node = 1;
    expect_refused(other, ErrorCode::kInvalidArgument, "rank 1 of node 1: it belongs to node 0");
    other = join_of(2);
    other.settings[1] = "--compute=fp32";
    expect_refused(
        other,
        ErrorCode::kInvalidArgument,
        "rank 2 of node 1 was started with --compute=fp32, rank 0 of node 0 with --compute=bf16"
    );
    ASSERT_TRUE(join(join_of(2)));
    static_cast<void>(meeting->take_letters());
    expect_refused(join_of(2), ErrorCode::kAlreadyExists, "pid 102 on host-1");
}

TEST_F(RankMeetingTest, ASenderIsOneRankAndANodeIsOneMachine) {
    start(6, 2);
    ASSERT_TRUE(join(join_of(3)));
    static_cast<void>(meeting->take_letters());
    auto same = sender_of(join_of(3));
    const Result<> twice = meeting->join(same, join_of(4));
    ASSERT_FALSE(twice);
    EXPECT_EQ(twice.error().code, ErrorCode::kAlreadyExists);
    EXPECT_NE(twice.error().message.find("it has joined as rank 3"), std::string::npos);
    EXPECT_TRUE(meeting->is_there(Rank{3})) << "it keeps its place";
    static_cast<void>(meeting->take_letters());
    messages::RankJoin other = join_of(4);
    other.host = "another";
    expect_refused(
        other, ErrorCode::kAlreadyExists, "its node is another machine, rank 3 on node 1 (host-1)"
    );
    auto stranger = sender_of(join_of(4));
    stranger.key = "key-2";
    EXPECT_FALSE(meeting->join(stranger, join_of(4)));
    EXPECT_TRUE(meeting->join(sender_of(join_of(4)), join_of(4)));
}

// Machines start in any order. A machine that does not match the head must not end the head.
TEST_F(RankMeetingTest, ARankThatCameBeforeTheHeadsAndDoesNotFitItLosesItsPlace) {
    start(3, 3);
    messages::RankJoin wrong = join_of(1);
    wrong.settings[1] = "--compute=fp32";
    ASSERT_TRUE(join(wrong)) << "nobody is there to measure it by";
    ASSERT_TRUE(join(join_of(2)));
    ASSERT_TRUE(bring(1, "barrier", {}));
    EXPECT_TRUE(meeting->take_dismissed().empty());
    static_cast<void>(meeting->take_letters());
    ASSERT_TRUE(join(join_of(0)));
    const auto letters = meeting->take_letters();
    ASSERT_EQ(letters.size(), 2U);
    EXPECT_EQ(letters[0].frames.type, messages::RankJoined::kType);
    EXPECT_EQ(letters[1].peer, "peer-1");
    const auto end = decode<messages::RankEnd>(letters[1].frames, messages::UnknownFields::kRefuse);
    ASSERT_TRUE(end);
    EXPECT_EQ(
        end->verdict.message,
        "rank 1 of node 1 was started with --compute=fp32, rank 0 of node 0 with --compute=bf16; "
        "all ranks take the same"
    );
    const auto dismissed = meeting->take_dismissed();
    ASSERT_EQ(dismissed.size(), 1U);
    EXPECT_EQ(dismissed[0], end->verdict.error());
    EXPECT_TRUE(meeting->is_there(Rank{2}));
    meeting->lose(Rank{1}, kConnectionEnded);
    EXPECT_EQ(meeting->loss(), std::nullopt);
    ASSERT_TRUE(join(join_of(1))) << "a right one";
    for (const int rank : {0, 1, 2}) ASSERT_TRUE(bring(rank, "barrier", {}));
    static_cast<void>(meeting->take_letters());
    EXPECT_EQ(meeting->deadline(), std::nullopt);
}

TEST_F(RankMeetingTest, AStatusSaysOnWhichMachineEachRankIs) {
    messages::ReplicaStatus status;
    for (const int rank : {0, 1}) status.workers.push_back({.rank = static_cast<Rank>(rank)});
    start(2, 1);
    join_all();
    meeting->report_to(status);
    EXPECT_EQ(status.workers[1], messages::WorkerStatus{.rank = Rank{1}}) << "there is one";
    start(2, 2);
    join_all();
    meeting->report_to(status);
    for (const auto& [rank, address] : {std::pair{0, ""}, {1, "10.0.0.1"}}) {
        const messages::WorkerStatus& worker = status.workers[static_cast<std::size_t>(rank)];
        EXPECT_EQ(worker.node, rank);
        EXPECT_EQ(worker.host, fmt::format("host-{}", rank));
        EXPECT_EQ(worker.address, address);
    }
}

// The head's ranks connect on the head's machine; all others come from elsewhere.
TEST_F(RankMeetingTest, AMachineThatTakesItselfForTheHeadIsRefused) {
    start(2, 2);
    const auto from_elsewhere =
        meeting->join({.peer = "a", .key = "key-1", .connection = 30}, join_of(0));
    ASSERT_FALSE(from_elsewhere);
    EXPECT_NE(from_elsewhere.error().message.find("node 0 is the head's"), std::string::npos);
    EXPECT_FALSE(meeting->join({.peer = "b", .connection = 31}, join_of(1)));
    ASSERT_TRUE(join(join_of(1)));
    EXPECT_TRUE(meeting->has(Rank{1}, "key-1"));
    EXPECT_FALSE(meeting->has(Rank{1}, "key-2"));
    EXPECT_FALSE(meeting->has(Rank{0}, ""));
}

TEST_F(RankMeetingTest, P5_ARankThatDoesNotComeIsNamedToAllThatWait) {
    start(4, 2);
    join_all();
    ASSERT_TRUE(bring(0, "barrier", {}));
    now += milliseconds(kLimitMs / 2);
    ASSERT_TRUE(bring(3, "barrier", {}));
    ASSERT_TRUE(meeting->deadline());
    EXPECT_EQ(*meeting->deadline(), TimePoint{} + milliseconds(kLimitMs)) << "the first is over";
    meeting->end_late(now);
    EXPECT_TRUE(parts().empty()) << "not yet";
    now = *meeting->deadline();
    meeting->end_late(now);
    const auto all = parts();
    ASSERT_EQ(all.size(), 2U);
    for (const auto& [peer, told] : all) {
        EXPECT_EQ(told.verdict.code, ErrorCode::kDeadlineExceeded);
        EXPECT_EQ(
            told.verdict.message,
            "barrier: rank 1 on node 0 (host-0), rank 2 on node 1 (host-1) has not arrived within "
            "1000 ms"
        );
    }
    ASSERT_TRUE(bring(1, "barrier", {})) << "too late";
    EXPECT_EQ(parts().at("peer-1").verdict.code, ErrorCode::kDeadlineExceeded);
    meeting->end({});  // the launcher ends the meeting after it saw ranks end
    for (const RankMeeting::Letter& letter : meeting->take_letters()) {
        const auto end = decode<messages::RankEnd>(letter.frames, messages::UnknownFields::kRefuse);
        EXPECT_EQ(end->verdict.code, ErrorCode::kDeadlineExceeded) << letter.peer;
    }
}

TEST_F(RankMeetingTest, P5_ALostRankIsNamedAndOneOfAnotherMachineEndsTheReplica) {
    start(4, 2);
    meet_once();
    ASSERT_TRUE(bring(0, "all_gather", {1}, 2));
    ASSERT_TRUE(bring(2, "all_gather", {3}, 2));
    EXPECT_EQ(meeting->peer_on(99), std::nullopt);
    ASSERT_EQ(meeting->peer_on(22), "peer-2");
    meeting->lose(Rank{2}, kConnectionEnded);
    EXPECT_EQ(meeting->peer_on(22), std::nullopt) << "it is gone already";
    const auto all = parts();
    ASSERT_EQ(all.size(), 1U) << "the lost one is told nothing";
    const std::string gone = "rank 2 on node 1 (host-1) is gone: its connection ended";
    EXPECT_EQ(all.at("peer-0").verdict.error(), (Error{ErrorCode::kUnavailable, gone}));
    ASSERT_TRUE(meeting->loss());
    EXPECT_EQ(meeting->loss()->message, gone);
    ASSERT_TRUE(bring(1, "all_gather", {2}, 2));
    EXPECT_EQ(parts().at("peer-1").verdict.message, gone) << "later ones hear it at once";
    meeting->lose(Rank{3}, "no more memory");
    EXPECT_EQ(meeting->loss()->message, gone) << "the first reason counts";
}

// Machines are started by hand, in any order: before all have met, a rank may leave and join again.
TEST_F(RankMeetingTest, ARankOfAnotherMachineThatLeavesBeforeAllHaveMetMayComeAgain) {
    start(3, 3);
    ASSERT_TRUE(join(join_of(0)));
    ASSERT_TRUE(join(join_of(1)));
    static_cast<void>(meeting->take_letters());
    ASSERT_TRUE(bring(0, "barrier", {}));
    ASSERT_TRUE(bring(1, "barrier", {}));
    meeting->lose(Rank{1}, kConnectionEnded);
    EXPECT_FALSE(meeting->is_there(Rank{1}));
    EXPECT_EQ(meeting->loss(), std::nullopt);
    EXPECT_TRUE(parts().empty()) << "who waits goes on waiting";
    EXPECT_FALSE(meeting->bring("peer-1", {.meeting = 1}, now)) << "it has no place any more";
    for (const int rank : {2, 1}) {
        ASSERT_TRUE(join(join_of(rank)));
        static_cast<void>(meeting->take_letters());
        ASSERT_TRUE(bring(rank, "barrier", {}));
    }
    EXPECT_EQ(parts().size(), 3U);
    meeting->lose(Rank{1}, kConnectionEnded);
    EXPECT_TRUE(meeting->loss()) << "all were there";
}

// The kernel reuses a descriptor at once. The end of the earlier connection must not end the
// current connection.
TEST_F(RankMeetingTest, AJoinOnADescriptorThatWasInUseEndsTheRankThatHadIt) {
    start(2, 1);
    ASSERT_TRUE(join(join_of(0)));
    ASSERT_TRUE(bring(0, "barrier", {}));
    static_cast<void>(meeting->take_letters());
    auto second = sender_of(join_of(1));
    second.connection = 20;
    ASSERT_TRUE(meeting->join(second, join_of(1)));
    EXPECT_EQ(meeting->peer_on(20), "peer-1");
    const auto letters = meeting->take_letters();
    ASSERT_EQ(letters.size(), 1U) << "who is gone is told nothing";
    EXPECT_EQ(letters[0].peer, "peer-1");
    ASSERT_TRUE(bring(1, "barrier", {}));
    EXPECT_EQ(parts().at("peer-1").verdict.message, "rank 0 is gone: its connection ended");
}

TEST_F(RankMeetingTest, ALostRankOfTheHeadsMachineIsItsLaunchersToTellOf) {
    start(2, 2);
    join_all();
    ASSERT_TRUE(bring(1, "barrier", {}));
    meeting->lose(Rank{0}, "a CUDA call failed");
    EXPECT_EQ(
        parts().at("peer-1").verdict.message,
        "rank 0 on node 0 (host-0) is gone: a CUDA call failed"
    );
    EXPECT_EQ(meeting->loss(), std::nullopt);
}

TEST_F(RankMeetingTest, RanksOutOfStepAreAnErrorAndNoWrongResult) {
    for (const auto& [what, size, number] : std::vector<std::tuple<std::string, int, int>>{
             {"barrier", 2, 1}, {"all_gather", 3, 1}, {"all_gather", 2, 2}}) {
        start(2, 1);
        join_all();
        ASSERT_TRUE(bring(0, "all_gather", {1, 2}));
        ASSERT_TRUE(
            bring(1, what, std::vector<std::uint8_t>(static_cast<std::size_t>(size)), number)
        );
        const auto all = parts();
        ASSERT_EQ(all.size(), 2U);
        EXPECT_EQ(all.at("peer-0").verdict.code, ErrorCode::kInternal);
        EXPECT_NE(all.at("peer-0").verdict.message.find("out of step"), std::string::npos);
    }
    EXPECT_FALSE(meeting->bring("a stranger", {.meeting = 1}, now));
}

TEST_F(RankMeetingTest, AnEndInOrderIsToldToOtherMachinesAndALossIsToldToAll) {
    start(2, 2);
    join_all();
    meeting->end({});
    auto letters = meeting->take_letters();
    ASSERT_EQ(letters.size(), 1U);
    EXPECT_EQ(letters[0].peer, "peer-1");
    EXPECT_EQ(letters[0].frames.type, messages::RankEnd::kType);
    meeting->lose(Rank{1}, "it left, as it was told");
    EXPECT_EQ(meeting->loss(), std::nullopt);

    start(2, 2);
    meet_once();
    meeting->lose(Rank{1}, "its connection ended");
    meeting->end(messages::Verdict(*meeting->loss()));
    letters = meeting->take_letters();
    ASSERT_EQ(letters.size(), 1U);
    EXPECT_EQ(letters[0].peer, "peer-0");
}

}  // namespace
}  // namespace pitstop::scheduler
