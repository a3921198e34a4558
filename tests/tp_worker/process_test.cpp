// The worker's process, with this test in the scheduler's place.
#include "base/time.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "messages/codec.h"
#include "messages/memory.h"
#include "messages/steps.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

// Worker processes and the socket they connect to.
class WorkerProcess : public testing::Test {
  protected:
    void SetUp() override {
        Result<bus::RunDir> run_dir = bus::RunDir::open(dir_.path());
        ASSERT_TRUE(run_dir.has_value());
        Result<bus::Socket> socket = bus::Socket::bind(
            context_, bus::SocketKind::kRouter, run_dir->workers(ReplicaId{0}), bus::kInnerLimits
        );
        ASSERT_TRUE(socket.has_value());
        socket_.emplace(*std::move(socket));
    }

    void TearDown() override {
        for (const auto& [rank, process] : processes_) {
            ::kill(process.pid, SIGKILL);
            ::waitpid(process.pid, nullptr, 0);
        }
        ::close(supervisor_[1]);
    }

    void start(int tp, std::vector<std::string> more_flags = {}) {
        ASSERT_EQ(::pipe2(supervisor_, O_CLOEXEC), 0);
        for (int rank = 0; rank < tp; ++rank) {
            std::vector<std::string> command{
                PITSTOP_TP_WORKER,
                "--run-dir=" + dir_.path(),
                "--model=" + model_dir("stories"),
                fmt::format("--rank={}", rank),
                fmt::format("--tp={}", tp),
                "--threads=1",
                "--max-total-tokens=512",
                "--device=cpu",  // unless a flag of the test's sets it
                "--log-level=error",
                fmt::format("--supervisor-fd={}", kSupervisorFd),
                fmt::format("--parent-pid={}", ::getpid())};
            command.insert(command.end(), more_flags.begin(), more_flags.end());
            std::vector<char*> arguments;
            for (std::string& word : command) arguments.push_back(word.data());
            arguments.push_back(nullptr);
            const pid_t pid = ::fork();
            ASSERT_GE(pid, 0);
            if (pid == 0) {
                ::dup2(supervisor_[0], kSupervisorFd);
                ::execv(arguments[0], arguments.data());
                ::_exit(127);
            }
            processes_[rank] = {.pid = pid};
        }
        ::close(supervisor_[0]);
    }

    // The next message, from any worker, except for unrequested ones about its memory.
    bus::Received receive() {
        bus::Poller poller;
        poller.add(*socket_);
        const TimePoint deadline = Clock::now() + kDeadline;
        while (Clock::now() < deadline) {
            std::optional<bus::Received> received = socket_->receive();
            if (!received) {
                poller.wait(deadline);
            } else if (received->frames.type != messages::WorkerMemoryDone::kType) {
                return *std::move(received);
            }
        }
        ADD_FAILURE() << "no message in time";
        return {};
    }

    void expect_hellos() {
        for (std::size_t i = 0; i < processes_.size(); ++i) {
            const bus::Received received = receive();
            ASSERT_EQ(received.frames.type, messages::WorkerHello::kType);
            const auto hello =
                decode<messages::WorkerHello>(received.frames, messages::UnknownFields::kRefuse);
            ASSERT_TRUE(hello.has_value()) << hello.error().message;
            EXPECT_EQ(messages::invalid(*hello), std::nullopt);
            processes_.at(raw(hello->rank)).peer = received.peer;
            EXPECT_EQ(hello->pid, processes_.at(raw(hello->rank)).pid);
        }
    }

    void send_to_all(const messages::Frames& frames) {
        for (const auto& [rank, process] : processes_) {
            EXPECT_EQ(socket_->send(frames, process.peer), bus::Sent::kSent);
        }
    }

    // The exit code, or minus the signal.
    int wait_for_exit(int rank) {
        const TimePoint deadline = Clock::now() + kDeadline;
        int status = 0;
        while (::waitpid(processes_.at(rank).pid, &status, WNOHANG) == 0) {
            if (Clock::now() > deadline) {
                ADD_FAILURE() << "rank " << rank << " does not end";
                return -1000;
            }
            ::usleep(1000);
        }
        processes_.erase(rank);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

    struct Process {
        pid_t pid = -1;
        std::string peer{};
    };
    static constexpr int kSupervisorFd = 50;
    test::TempDir dir_{};
    zmq::context_t context_{1};
    std::optional<bus::Socket> socket_{};
    std::map<int, Process> processes_{};
    int supervisor_[2] = {-1, -1};
};

// "Once upon a time" -> "," as the reference has it.
messages::StepPlan first_plan() {
    messages::StepPlan plan;
    plan.step = StepId{1};
    plan.epoch = Epoch{1};
    messages::RequestSetup setup;
    setup.prompt_len = 4;
    setup.sampling.temperature = 0;
    plan.setups = {setup};
    plan.rows = {{.num_new = 4, .num_pages = 1, .output_index = 0}};
    plan.tokens.values = {TokenId{740}, TokenId{543}, TokenId{258}, TokenId{498}};
    plan.pages.values = {PageId{0}};
    return plan;
}

TEST_F(WorkerProcess, SaysHelloRunsPlansAndStopsWhenTold) {
    start(2);
    expect_hellos();
    send_to_all(encode(first_plan()));
    for (int i = 0; i < 2; ++i) {
        const bus::Received received = receive();
        ASSERT_EQ(received.frames.type, messages::StepResult::kType);
        const auto result =
            decode<messages::StepResult>(received.frames, messages::UnknownFields::kRefuse);
        ASSERT_TRUE(result.has_value());
        EXPECT_EQ(result->step, StepId{1});
        EXPECT_EQ(
            result->sampled.values,
            raw(result->rank) == 0 ? std::vector<TokenId>{TokenId{11}} : std::vector<TokenId>{}
        );
    }
    EXPECT_EQ(::write(supervisor_[1], "stop\nstop\n", 10), 10);
    ::close(std::exchange(supervisor_[1], -1));
    EXPECT_EQ(wait_for_exit(0), 0);
    EXPECT_EQ(wait_for_exit(1), 0);
}

// A loaded worker: the next plan always arrives before the last result is sent.
TEST_F(WorkerProcess, VotesThoughPlansNeverCease) {
    start(1);
    expect_hellos();
    messages::WorkerStage stage;
    stage.update = messages::UpdateId{1};
    stage.spec.source.path = model_dir("stories");
    send_to_all(encode(stage));
    messages::StepPlan plan = first_plan();
    constexpr std::int64_t kPlansAhead = 8;
    constexpr std::int64_t kPlansMax = 900;  // fewer than the messages of a turn of the loop
    std::int64_t num_results = 0;
    std::optional<messages::WorkerStaged> vote;
    for (std::int64_t sent = 0; !vote && num_results < kPlansMax;) {
        for (; sent < num_results + kPlansAhead; ++sent) {
            plan.step = StepId{sent + 1};
            send_to_all(encode(plan));
        }
        const bus::Received received = receive();
        if (received.frames.type == messages::StepResult::kType) {
            ++num_results;
            continue;
        }
        ASSERT_EQ(received.frames.type, messages::WorkerStaged::kType);
        auto decoded =
            decode<messages::WorkerStaged>(received.frames, messages::UnknownFields::kRefuse);
        ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
        vote = *std::move(decoded);
    }
    ASSERT_TRUE(vote.has_value()) << "none in " << num_results << " passes";
    EXPECT_TRUE(vote->outcome.ok) << (vote->outcome.code ? name_of(*vote->outcome.code) : "");
    EXPECT_EQ(vote->update, messages::UpdateId{1});
}

// The stage of an adapter is ordered after these plans, and after one order to forget versions.
class StageOfAdapter : public WorkerProcess {
  protected:
    static constexpr std::int64_t kPlans = 12;
    static constexpr std::int64_t kTokens = 256;  // per plan: a vote takes less than such a pass

    // Counts the results before the vote; all plans are run.
    void count_results_before_vote(std::vector<messages::AdapterId> forgotten) {
        start(1, {fmt::format("--page-size={}", kTokens)});
        expect_hellos();
        const pid_t worker = processes_.at(0).pid;
        ASSERT_EQ(::kill(worker, SIGSTOP), 0);  // until all orders have been sent
        messages::StepPlan plan = first_plan();
        plan.setups[0].prompt_len = kTokens;
        plan.rows[0].num_new = kTokens;
        plan.tokens.values.resize(kTokens, TokenId{740});
        for (std::int64_t step = 1; step <= kPlans; ++step) {
            plan.step = StepId{step};
            send_to_all(encode(plan));
        }
        send_to_all(encode(messages::WorkerForget{.adapters = std::move(forgotten)}));
        messages::WorkerStage stage;
        stage.update = messages::UpdateId{1};
        stage.spec.adapter = "policy";
        stage.spec.source.path = "/nowhere";
        send_to_all(encode(stage));
        ASSERT_EQ(::kill(worker, SIGCONT), 0);
        std::int64_t num_results = 0;
        while (num_results < kPlans || !num_before_vote_) {
            const bus::Received received = receive();
            if (received.frames.type == messages::WorkerStaged::kType) {
                num_before_vote_ = num_results;
                continue;
            }
            ASSERT_EQ(received.frames.type, messages::StepResult::kType);
            ++num_results;
        }
    }

    std::optional<std::int64_t> num_before_vote_{};
};

// A load of an adapter waits for no pass.
TEST_F(StageOfAdapter, OvertakesThePlansThatWaitAndTheForgettingOfOneVersion) {
    count_results_before_vote({messages::AdapterId{7}});
    EXPECT_LT(num_before_vote_.value_or(kPlans), kPlans);
}

// With the new version, a rank would have two more than its memory allows.
TEST_F(StageOfAdapter, WaitsUntilAllButOneForgottenVersionHaveLeft) {
    count_results_before_vote({messages::AdapterId{7}, messages::AdapterId{8}});
    EXPECT_EQ(num_before_vote_.value_or(0), kPlans);
}

// A worker on a GPU, whose steps run ahead of their results.
class GpuWorkerProcess : public WorkerProcess {
  protected:
    void SetUp() override {
        WorkerProcess::SetUp();
        skip_without_gpu();
    }
    template <class Message>
    Message expect() {
        const bus::Received received = receive();
        EXPECT_EQ(received.frames.type, Message::kType);
        if (received.frames.type != Message::kType) return {};
        auto message = decode<Message>(received.frames, messages::UnknownFields::kRefuse);
        EXPECT_TRUE(message.has_value());
        return message ? *std::move(message) : Message{};
    }
};

// Plans the token after first_plan()'s token, which the scheduler has not seen.
messages::StepPlan next_plan(StepId step, Epoch epoch) {
    messages::StepPlan plan;
    plan.step = step;
    plan.epoch = epoch;
    plan.rows = {{.begin = 4, .num_new = 1, .num_pages = 1, .output_index = 1}};
    plan.rows[0].takes_sampled = true;
    plan.tokens.values = {TokenId{0}};
    plan.pages.values = {PageId{0}};
    return plan;
}

// The scheduler gets every result of the old epoch before it learns of the new one, and no step's
// weights change while it is in progress.
TEST_F(GpuWorkerProcess, P1_ACommitWaitsForTheStepsUnderWay) {
    start(1, {"--device=cuda"});
    expect_hellos();
    messages::WorkerStage stage;
    stage.update = messages::UpdateId{1};
    stage.spec.source.path = model_dir("stories");
    send_to_all(encode(stage));
    ASSERT_TRUE(expect<messages::WorkerStaged>().outcome.ok);
    send_to_all(encode(first_plan()));
    send_to_all(encode(next_plan(StepId{2}, Epoch{1})));
    send_to_all(encode(messages::WorkerCommit{.update = messages::UpdateId{1}, .epoch = Epoch{2}}));
    std::vector<TokenId> sampled;
    for (const int step : {1, 2}) {
        const auto result = expect<messages::StepResult>();
        EXPECT_EQ(result.step, StepId{step});
        EXPECT_EQ(result.epoch, Epoch{1});
        ASSERT_FALSE(HasFailure());  // a dead worker sends nothing more
        sampled.insert(sampled.end(), result.sampled.values.begin(), result.sampled.values.end());
    }
    EXPECT_EQ(expect<messages::WorkerCommitted>().update, messages::UpdateId{1});
    send_to_all(encode(next_plan(StepId{3}, Epoch{2})));
    const auto after = expect<messages::StepResult>();
    EXPECT_EQ(after.epoch, Epoch{2});
    ASSERT_EQ(sampled.size(), 2u);
    EXPECT_EQ(sampled[0], TokenId{11});
}

TEST_F(WorkerProcess, P5_ARankWhosePeerWasKilledSaysSoAndEnds) {
    start(2);
    expect_hellos();
    ::kill(processes_.at(1).pid, SIGKILL);
    EXPECT_EQ(wait_for_exit(1), -SIGKILL);
    send_to_all(encode(first_plan()));
    const bus::Received received = receive();
    ASSERT_EQ(received.frames.type, messages::WorkerError::kType);
    const auto error =
        decode<messages::WorkerError>(received.frames, messages::UnknownFields::kRefuse);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->rank, Rank{0});
    EXPECT_EQ(error->error.code, ErrorCode::kUnavailable);
    EXPECT_NE(error->error.message.find("rank 1"), std::string::npos) << error->error.message;
    EXPECT_EQ(wait_for_exit(0), 1);
}

TEST_F(WorkerProcess, DropsWhatIsNoOrderAndGoesOn) {
    start(1);
    expect_hellos();
    send_to_all({.type = "generate", .body = "\x80"});
    send_to_all({.type = std::string("\xff\x00\x01", 3), .body = "random bytes"});
    send_to_all({.type = "", .body = ""});
    send_to_all(encode(first_plan()));
    EXPECT_EQ(receive().frames.type, messages::StepResult::kType);
}

TEST_F(WorkerProcess, APlanThatCannotBeReadEndsTheRankWithTheReason) {
    start(1);
    expect_hellos();
    messages::Frames frames = encode(first_plan());
    frames.body.resize(frames.body.size() / 2);
    send_to_all(frames);
    const bus::Received received = receive();
    ASSERT_EQ(received.frames.type, messages::WorkerError::kType);
    EXPECT_EQ(
        decode<messages::WorkerError>(received.frames, messages::UnknownFields::kRefuse)
            ->error.code,
        ErrorCode::kMalformed
    );
    EXPECT_EQ(wait_for_exit(0), 1);
}

TEST_F(WorkerProcess, EndsWhenTheLauncherIsGone) {
    start(1);
    expect_hellos();
    ::close(std::exchange(supervisor_[1], -1));  // as if the launcher had died
    EXPECT_EQ(wait_for_exit(0), 0);
}

TEST_F(WorkerProcess, ABadModelDirectoryIsAnExitWithTheReason) {
    start(1, {"--model=" + dir_.path()});
    EXPECT_EQ(wait_for_exit(0), 1);
}

TEST_F(WorkerProcess, ASizeThatNoStepHasIsAUsageError) {
    start(1, {"--chunked-prefill-size=9223372036854775807"});
    EXPECT_EQ(wait_for_exit(0), 2);
}

TEST_F(WorkerProcess, AGpuThatCannotBeCountedIsAUsageError) {
    start(1, {"--device=auto", "--gpu=2147483647"});
    EXPECT_EQ(wait_for_exit(0), 2);
}

TEST_F(WorkerProcess, ABadFlagIsAUsageError) {
    start(1, {"--compute=fp8"});
    EXPECT_EQ(wait_for_exit(0), 2);
}

}  // namespace
}  // namespace pitstop::tp_worker
