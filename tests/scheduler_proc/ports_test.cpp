// The loop's sockets, with real ones at the other end.
#include "scheduler_proc/ports.h"

#include "messages/codec.h"
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace pitstop::scheduler {
namespace {

constexpr const char* kBuild = "pitstop of this test";

class PortsTest : public testing::Test {
  protected:
    void SetUp() override {
        path_ =
            std::filesystem::temp_directory_path() / fmt::format("pitstop-ports-{}", ::getpid());
        std::filesystem::create_directory(path_);
        std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
        run_dir_.emplace(*bus::RunDir::open(path_.string()));
        tokenizer.emplace(bind(run_dir_->tokenizer()));
        detokenizer.emplace(bind(run_dir_->detokenizer()));
        ports.emplace(*Ports::open(context, *run_dir_, {.ranks = {.tp = 2, .build = kBuild}}));
        requests.emplace(connect(bus::SocketKind::kPush, run_dir_->requests(ReplicaId{0})));
        control.emplace(connect(bus::SocketKind::kPush, run_dir_->control(ReplicaId{0})));
        for (auto& worker : workers)
            worker.emplace(connect(bus::SocketKind::kDealer, run_dir_->workers(ReplicaId{0})));
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    bus::Socket bind(const std::string& endpoint) {
        return *bus::Socket::bind(context, bus::SocketKind::kPull, endpoint, bus::kInnerLimits);
    }
    bus::Socket connect(bus::SocketKind kind, const std::string& endpoint) {
        return *bus::Socket::connect(context, kind, endpoint, bus::kInnerLimits);
    }
    // Receives until enough() of all input is true, with a deadline.
    template <class Enough>
    TurnInput receive(Enough enough) {
        TurnInput all;
        const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
        bus::Poller poller;
        ports->add_to(poller);
        while (!enough(all) && Clock::now() < deadline) {
            poller.wait(Clock::now() + std::chrono::milliseconds(100));
            TurnInput some = ports->receive();
            std::ranges::move(some.control, std::back_inserter(all.control));
            std::ranges::move(some.requests, std::back_inserter(all.requests));
            std::ranges::move(some.workers, std::back_inserter(all.workers));
            all.num_refused += some.num_refused;
        }
        EXPECT_TRUE(enough(all));
        return all;
    }
    static std::optional<pitstop::bus::Received> wait_for(bus::Socket& socket) {
        bus::Poller poller;
        poller.add(socket);
        poller.wait(Clock::now() + std::chrono::seconds(10));
        return socket.receive();
    }
    void say_hello() {
        const auto hellos = FakeWorkers({.tp = 2}).hellos();
        for (std::size_t rank = 0; rank < 2; ++rank) {
            ASSERT_EQ(
                workers[rank]->send(encode(std::get<messages::WorkerHello>(hellos[rank]))),
                bus::Sent::kSent
            );
        }
        receive([](const TurnInput& in) { return in.workers.size() == 2; });
    }

    zmq::context_t context{};
    std::optional<Ports> ports{};
    std::optional<bus::Socket> tokenizer{}, detokenizer{}, requests{}, control{};
    std::array<std::optional<bus::Socket>, 2> workers{};

    std::optional<bus::RunDir> run_dir_{};

  private:
    std::filesystem::path path_{};
};

TEST_F(PortsTest, MessagesBecomeATurnsInput) {
    say_hello();
    messages::TokenizedRequest request;
    request.key = RequestKey{4};
    request.prompt.values = prompt_of(3);
    ASSERT_EQ(requests->send(encode(request)), bus::Sent::kSent);
    ASSERT_EQ(
        requests->send(encode(messages::EndRequests{.keys = {RequestKey{9}}})), bus::Sent::kSent
    );
    ASSERT_EQ(control->send(encode(messages::Status{.call = CallId{2}})), bus::Sent::kSent);
    ASSERT_EQ(
        workers[1]->send(encode(messages::StepResult{.step = StepId{1}, .rank = Rank{1}})),
        bus::Sent::kSent
    );
    const TurnInput in = receive([](const TurnInput& all) {
        return all.requests.size() == 1 && all.control.size() == 2 && all.workers.size() == 1;
    });
    EXPECT_EQ(in.requests[0].prompt.values, prompt_of(3));
    EXPECT_EQ(in.num_refused, 0);
    EXPECT_GT(in.now, TimePoint{} - std::chrono::hours(1));
}

TEST_F(PortsTest, BytesThatAreNoMessageAreCountedAndEndNothing) {
    say_hello();
    const auto send_raw = [](bus::Socket& socket, std::string type, std::string body) {
        ASSERT_EQ(
            socket.send({.type = std::move(type), .body = std::move(body)}), bus::Sent::kSent
        );
    };
    send_raw(*requests, "tokenized_request", "\xc1garbage");
    send_raw(*requests, "no_such_message", "\x80");
    send_raw(*control, "pause_generation", "\x81\xa4mode\xa4nope");
    send_raw(*control, "step_plan", "\x80");
    send_raw(*workers[0], "step_result", "\xff\xff");
    send_raw(*workers[0], "tokenized_request", "\x80");
    send_raw(*workers[0], "worker_hello", "\x80");  // twice
    ASSERT_EQ(
        workers[0]->send(encode(messages::StepResult{.rank = Rank{1}})), bus::Sent::kSent
    );  // not its rank
    const TurnInput in = receive([](const TurnInput& all) { return all.num_refused == 8; });
    EXPECT_TRUE(in.control.empty() && in.requests.empty() && in.workers.empty());
}

TEST_F(PortsTest, AWorkerBeforeItsHelloIsNotBelieved) {
    ASSERT_EQ(workers[0]->send(encode(messages::StepResult{})), bus::Sent::kSent);
    messages::WorkerHello hello =
        std::get<messages::WorkerHello>(FakeWorkers({.tp = 8}).hellos()[7]);
    ASSERT_EQ(workers[1]->send(encode(hello)), bus::Sent::kSent);  // a rank of another replica
    receive([](const TurnInput& all) { return all.num_refused == 2; });
}

TEST_F(PortsTest, EveryRankGetsTheSameMessagesInTheSameOrder) {
    say_hello();
    TurnOutput out;
    messages::StepPlan plan{.step = StepId{1}, .epoch = Epoch{1}};
    plan.rows.push_back({.num_new = 1, .num_pages = 1});
    plan.tokens.values = {TokenId{3}};
    plan.pages.values = {PageId{0}};
    out.workers.emplace_back(plan);
    out.workers.emplace_back(messages::WorkerCommit{
        .update = messages::UpdateId{1}, .epoch = Epoch{2}});
    out.tokenizer.emplace_back(messages::PausePart{.call = CallId{7}});
    out.batch = messages::TokenBatch{.drops = {RequestKey{3}}};
    ASSERT_TRUE(ports->send(std::move(out)));
    EXPECT_FALSE(ports->has_held());
    std::vector<std::string> bodies;
    for (auto& worker : workers) {
        const auto first = wait_for(*worker);
        const auto second = wait_for(*worker);
        ASSERT_TRUE(first && second);
        EXPECT_EQ(first->frames.type, "step_plan");
        EXPECT_EQ(second->frames.type, "worker_commit");
        bodies.push_back(first->frames.body);
    }
    EXPECT_EQ(bodies[0], bodies[1]);
    EXPECT_EQ(wait_for(*tokenizer)->frames.type, "pause_part");
    EXPECT_EQ(wait_for(*detokenizer)->frames.type, "token_batch");
}

TEST_F(PortsTest, AWorkerThatIsGoneIsTheLaunchersMatter) {
    say_hello();
    workers[1].reset();
    TurnOutput out;
    out.workers.emplace_back(messages::WorkerDrop{.update = messages::UpdateId{1}});
    EXPECT_TRUE(ports->send(std::move(out)));
    EXPECT_EQ(wait_for(*workers[0])->frames.type, "worker_drop");
}

// Connections end, and a rank connects with one of their descriptors. Both events wait when the
// ports read them.
TEST_F(PortsTest, ARankOnADescriptorThatAStrangerHadIsNotTakenForLost) {
    // All connections exist: from here on only this test opens and closes descriptors.
    for (bus::Socket* const socket : {&*requests, &*control, &*workers[0], &*workers[1]})
        ASSERT_EQ(socket->send({.type = "no_such_message", .body = "\x80"}), bus::Sent::kSent);
    receive([](const TurnInput& all) { return all.num_refused == 4; });
    zmq::context_t apart;
    zmq::socket_t rank(apart, zmq::socket_type::dealer);  // the ports' sockets are older
    rank.set(zmq::sockopt::linger, 0);
    bus::Poller poller;
    ports->add_to(poller);
    constexpr std::size_t kWorkers = 2;
    constexpr std::size_t kWorkerEnds = 3;
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    const auto wait_for_entry = [&](std::size_t index) {
        do {
            poller.wait(deadline);
        } while (!poller.is_ready(index) && Clock::now() < deadline);
        ASSERT_TRUE(poller.is_ready(index));
    };
    ::sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = run_dir_->workers(ReplicaId{0}).substr(std::strlen("ipc://"));
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.c_str(), path.size());
    const auto* const to = reinterpret_cast<const ::sockaddr*>(&address);
    // Opens none itself: it might get the number of one that the ports have just closed.
    const auto num_descriptors = [] {
        constexpr int kMost = 1024;
        int num = 0;
        for (int fd = 0; fd < kMost; ++fd) num += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
        return num;
    };
    // The strangers keep their own descriptors open, so that the new rank's connection reuses one
    // of the ports' descriptors.
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    std::array<int, 4> strangers{};
    for (int& stranger : strangers) stranger = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto num_before = num_descriptors();
    for (const int stranger : strangers) ASSERT_EQ(::connect(stranger, to, sizeof address), 0);
    while (num_descriptors() < num_before + 4 && Clock::now() < deadline) std::this_thread::yield();
    for (const int stranger : strangers) ::dup2(null, stranger);
    while (num_descriptors() > num_before && Clock::now() < deadline) std::this_thread::yield();
    wait_for_entry(kWorkerEnds);
    messages::RankJoin join;
    join.build = kBuild;
    join.tp = 2;
    const messages::Frames frames = encode(join);
    rank.connect(run_dir_->workers(ReplicaId{0}));
    rank.send(zmq::buffer(frames.type), zmq::send_flags::sndmore);
    rank.send(zmq::buffer(frames.body), zmq::send_flags::none);
    wait_for_entry(kWorkers);
    EXPECT_EQ(ports->receive().num_refused, 0);
    // A rank joins after another rank was lost, and the join is accepted.
    messages::RankJoin other = join;
    other.rank = Rank{1};
    ASSERT_EQ(workers[1]->send(encode(other)), bus::Sent::kSent);
    wait_for_entry(kWorkers);
    static_cast<void>(ports->receive());
    const auto joined = wait_for(*workers[1]);
    ASSERT_TRUE(joined);
    const auto answer =
        decode<messages::RankJoined>(joined->frames, messages::UnknownFields::kRefuse);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->verdict.is_done()) << answer->verdict.message;
    for (const int stranger : strangers) ::close(stranger);
    ::close(null);
}

}  // namespace
}  // namespace pitstop::scheduler
