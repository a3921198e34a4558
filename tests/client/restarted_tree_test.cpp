// A client's requests to a tree that ended reach no later tree.
#include "messages/weights.h"
#include "tests/client/client_fixture.h"

#include <future>
#include <thread>

namespace pitstop {
namespace {

using namespace std::chrono_literals;

class RestartedTree : public ClientTest {
  protected:
    // Replaces the tree by another one at the same door, and waits until the client is connected to
    // it.
    void restart(Client& client) {
        door_.reset();
        wait_lost(client);
        door_.emplace(dir_.path());
        wait_for_tree(client);
    }
    void wait_for_tree(Client& client) {
        const TimePoint deadline = Clock::now() + kLong;
        while (!client.is_connected() && Clock::now() < deadline) std::this_thread::yield();
        ASSERT_TRUE(client.is_connected());
        round_trip(client);
        EXPECT_EQ(door_->tree_of_last(), door_->tree());
    }
    // Waits until the client has noticed the loss at both doors.
    static void wait_lost(Client& client) {
        const TimePoint deadline = Clock::now() + kLong;
        const auto knows = [&](const auto& request) {
            const auto reply = client.call(request, std::chrono::hours(1));
            return reply.error().message.find("nothing was sent") != std::string::npos;
        };
        while (!(knows(messages::Status{}) && knows(messages::Tokenize{.text = ""})))
            ASSERT_LT(Clock::now(), deadline);
        EXPECT_FALSE(client.is_connected());
    }
    // Starts a call; returns the future of its end.
    template <class Request>
    static std::future<Result<messages::ReplyTo<Request>>> start(Client& client, Request request) {
        auto end = std::make_shared<std::promise<Result<messages::ReplyTo<Request>>>>();
        client.call<Request>(
            std::move(request),
            [end](Result<messages::ReplyTo<Request>> reply) { end->set_value(std::move(reply)); },
            std::chrono::hours(1)
        );
        return end->get_future();
    }
    template <class Reply>
    static void expect_unavailable(std::future<Result<Reply>> end, std::string_view why) {
        ASSERT_EQ(end.wait_for(kLong), std::future_status::ready) << why;
        const Result<Reply> reply = end.get();
        ASSERT_FALSE(reply.has_value());
        EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
        EXPECT_NE(reply.error().message.find(why), std::string::npos) << reply.error().message;
    }
    // Waits until a call sent now is answered, so that everything sent before it has arrived.
    void round_trip(Client& client) {
        auto status = start(client, messages::Status{});
        const auto [peer, call] = door_->take<messages::Status>();
        messages::StatusReply reply;
        reply.call = call.call;
        door_->send(messages::Door::kAdmin, peer, encode(reply));
        ASSERT_EQ(status.wait_for(kLong), std::future_status::ready);
        EXPECT_TRUE(status.get().has_value());
    }
};

TEST_F(RestartedTree, EveryMessageNamesTheTreeItIsFor) {
    const auto client = connect();
    const auto expect_named = [&] { EXPECT_EQ(door_->tree_of_last(), door_->tree()); };
    for (int i = 0; i < 2; ++i) {
        {
            const Stream stream = client->generate(prompt("hello"));
            door_->take<messages::Generate>();
            expect_named();
        }
        door_->take<messages::Cancel>();
        expect_named();
        start(*client, messages::PauseGeneration{});
        door_->take<messages::PauseGeneration>();
        expect_named();
        start(*client, messages::Abort{.all = true});
        const auto [peer, fence] = door_->take<messages::Fence>();
        expect_named();
        messages::FenceReply reply;
        reply.call = fence.call;
        door_->send(messages::Door::kData, peer, encode(reply));
        door_->take<messages::Abort>();
        expect_named();
        restart(*client);
    }
}

TEST_F(RestartedTree, CallsThatAreOpenEndWhenTheTreeIsLost) {
    const auto client = connect();
    auto update = start(*client, messages::UpdateWeights{.update = {.source = {.path = "/model"}}});
    auto pause = start(*client, messages::PauseGeneration{});
    auto tokens = start(*client, messages::Tokenize{.text = "hello"});
    door_->take<messages::UpdateWeights>();
    door_->take<messages::PauseGeneration>();
    door_->take<messages::Tokenize>();
    door_.reset();
    expect_unavailable(std::move(update), "may have taken effect");
    expect_unavailable(std::move(pause), "may have taken effect");
    expect_unavailable(std::move(tokens), "may have taken effect");
}

TEST_F(RestartedTree, CallsWhileNoTreeIsThereFailAtOnceAndReachNoTree) {
    const auto client = connect();
    door_.reset();
    wait_lost(*client);
    expect_unavailable(start(*client, messages::PauseGeneration{}), "nothing was sent");
    expect_unavailable(
        start(*client, messages::UpdateWeights{.update = {.source = {.path = "/model"}}}),
        "nothing was sent"
    );
    expect_unavailable(start(*client, messages::Abort{.all = true}), "nothing was sent");
    expect_unavailable(start(*client, messages::Tokenize{.text = "hello"}), "nothing was sent");
    EXPECT_EQ(client->generate_blocking(prompt("hello")).error().code, ErrorCode::kUnavailable);
    door_.emplace(dir_.path());
    wait_for_tree(*client);
    EXPECT_FALSE(door_->has<messages::PauseGeneration>());
    EXPECT_FALSE(door_->has<messages::UpdateWeights>());
    EXPECT_FALSE(door_->has<messages::Abort>());
    EXPECT_FALSE(door_->has<messages::Tokenize>());
    EXPECT_FALSE(door_->has<messages::Generate>());
}

// A proxy keeps the connection open while another tree replaces the first.
TEST_F(RestartedTree, ATreeThatSaysItIsAnotherOneEndsWhatIsOpenAndIsGreetedAgain) {
    const auto client = connect();
    auto pause = start(*client, messages::PauseGeneration{});
    auto next = start(*client, messages::ContinueGeneration{});
    door_->take<messages::PauseGeneration>();
    const auto [peer, call] = door_->take<messages::ContinueGeneration>();
    door_->become("another");
    messages::ErrorReply refusal;
    refusal.call = call.call;
    refusal.error.code = ErrorCode::kUnavailable;
    const auto refuse = [&](messages::Door door, const std::string& to) {
        messages::Frames frames = encode(refusal);
        add_tree(frames, "another");
        door_->send(door, to, std::move(frames));
    };
    refuse(messages::Door::kAdmin, peer);
    expect_unavailable(std::move(pause), "was restarted");
    expect_unavailable(std::move(next), "was restarted");
    // The client has not noticed the new tree at the data door: requests there get the same error.
    Stream stream = client->generate(prompt("hello"));
    const auto [data_peer, request] = door_->take<messages::Generate>();
    refusal.call = CallId{};
    refusal.rid = request.rid;
    refuse(messages::Door::kData, data_peer);
    EXPECT_EQ(stream.wait(kLong).error().code, ErrorCode::kUnavailable);
    wait_for_tree(*client);
    Stream second = client->generate(prompt("hello"));
    door_->take<messages::Generate>();
    EXPECT_EQ(door_->tree_of_last(), "another");
}

TEST_F(RestartedTree, AConnectionIsOneToEveryDoor) {
    const auto run_dir = bus::RunDir::open(dir_.path());
    const auto client = Client::connect(
        {.data_endpoint = run_dir->data_door(),
         .admin_endpoint = "ipc://" + dir_.path() + "/nobody.sock",
         .connect_timeout = 50ms}
    );
    EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace pitstop
