// --keep-committed: the next step of each rank, and the reports.
#include "tokenizer_proc/keep_coordinator.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

class KeepCoordinatorTest : public testing::Test {
  protected:
    static ServedVersion version(int epoch, const std::string& path = "") {
        return {
            .epoch = Epoch{epoch},
            .label = fmt::format("step-{}", epoch),
            .digest = fmt::format("d{}", epoch),
            .path = path};
    }
    // The step that follows this rank's answer.
    std::optional<messages::WorkerKeep> answer(
        const messages::WorkerKeep& to,
        int rank,
        const std::string& path = "",
        std::optional<ErrorCode> code = std::nullopt
    ) {
        messages::WorkerKept part;
        part.call = to.call;
        part.step = to.step;
        part.rank = Rank{rank};
        part.path = path;
        part.verdict.code = code;
        part.verdict.message = !code ? "" : "the disk is full";
        return keep_.part(now_, part);
    }
    [[nodiscard]] messages::KeepStatus status() const { return keep_.status(now_); }

    TimePoint now_ = TimePoint{} + 1h;
    KeepCoordinator keep_{now_, "/kept", 2, version(1, "/models/base")};
};

TEST_F(KeepCoordinatorTest, EveryRankWritesBeforeTheFileIsSealed) {
    EXPECT_EQ(status().state, messages::KeepState::kIdle);
    const messages::WorkerKeep begin = keep_.committed(now_, version(2));
    EXPECT_EQ(begin.step, messages::KeepStep::kBegin);
    EXPECT_EQ(begin.epoch, Epoch{2});
    EXPECT_EQ(begin.label, "step-2");
    const std::optional<messages::WorkerKeep> write = answer(begin, 0);
    ASSERT_TRUE(write.has_value());
    EXPECT_EQ(write->step, messages::KeepStep::kWrite);
    EXPECT_FALSE(answer(*write, 1).has_value()) << "rank 0 still writes";
    EXPECT_FALSE(answer(*write, 1).has_value()) << "a copy counts once";
    const std::optional<messages::WorkerKeep> seal = answer(*write, 0);
    ASSERT_TRUE(seal.has_value());
    EXPECT_EQ(seal->step, messages::KeepStep::kSeal);
    EXPECT_EQ(status().state, messages::KeepState::kWriting);
    EXPECT_EQ(status().path, "") << "it is not whole yet";
    now_ += 5s;
    EXPECT_EQ(status().age_s, 5);
    EXPECT_FALSE(answer(*seal, 0, "/kept/committed-00000001-d2").has_value());
    EXPECT_EQ(status().state, messages::KeepState::kKept);
    EXPECT_EQ(status().path_digest, "d2");
    EXPECT_EQ(status().kept_total, 1);
}

TEST_F(KeepCoordinatorTest, TheNewestVersionWins) {
    const messages::WorkerKeep old = keep_.committed(now_, version(2));
    const std::optional<messages::WorkerKeep> write = answer(old, 0);
    const messages::WorkerKeep begin = keep_.committed(now_, version(3));
    EXPECT_NE(begin.call, old.call);
    EXPECT_FALSE(answer(*write, 0).has_value()) << "of the old version";
    EXPECT_FALSE(answer(*write, 1, "", ErrorCode::kAborted).has_value());
    EXPECT_EQ(status().state, messages::KeepState::kWriting);
    EXPECT_EQ(status().epoch, Epoch{3});
    EXPECT_EQ(status().superseded_total, 1);
    EXPECT_EQ(status().failed_total, 0);
    EXPECT_TRUE(answer(begin, 0).has_value());
}

TEST_F(KeepCoordinatorTest, AFailureIsToldAndLeavesWhatWasKept) {
    const messages::WorkerKeep first = keep_.committed(now_, version(2));
    EXPECT_FALSE(answer(first, 0, "/kept/committed-00000001-d2").has_value())
        << "it was there already: nothing is to be written";
    EXPECT_EQ(status().state, messages::KeepState::kKept);
    const messages::WorkerKeep second = keep_.committed(now_, version(3));
    const std::optional<messages::WorkerKeep> write = answer(second, 0);
    const std::optional<messages::WorkerKeep> drop =
        answer(*write, 1, "", ErrorCode::kResourceExhausted);
    ASSERT_TRUE(drop.has_value());
    EXPECT_EQ(drop->step, messages::KeepStep::kDrop);
    EXPECT_FALSE(answer(*write, 0).has_value()) << "the other rank's, late";
    EXPECT_EQ(status().state, messages::KeepState::kFailed);
    EXPECT_EQ(status().message, "the disk is full");
    EXPECT_EQ(status().path_digest, "d2");
    EXPECT_EQ(status().failed_total, 1);
    const messages::WorkerKeep third = keep_.committed(now_, version(4));
    EXPECT_EQ(third.step, messages::KeepStep::kBegin);
    EXPECT_EQ(status().message, "");
}

TEST_F(KeepCoordinatorTest, AVersionThatARestartTookFromTheDirectoryIsKept) {
    const KeepCoordinator keep(now_, "/kept", 1, version(7, "/kept/committed-00000003-d7"));
    EXPECT_EQ(keep.status(now_).state, messages::KeepState::kKept);
    EXPECT_EQ(keep.status(now_).path, "/kept/committed-00000003-d7");
}

}  // namespace
}  // namespace pitstop::tokenizer
