// Tests a client that is destroyed in one of its own callbacks.
#include "tests/client/client_fixture.h"

#include <future>
#include <memory>
#include <poll.h>
#include <set>

namespace pitstop {
namespace {

using namespace std::chrono_literals;

// The promise is shared with the client's thread, which may still be in set_value() when the future
// is ready.
template <class T>
std::shared_ptr<std::promise<T>> shared_promise() {
    return std::make_shared<std::promise<T>>();
}

TEST_F(ClientTest, DestroyedInARequestsCallbackItEndsEverythingBeforeTheDestructorReturns) {
    auto client = connect();
    std::set<std::string> ended;  // called by the client's thread
    const auto over = shared_promise<void>();
    int num_late = 0;
    bool is_destroyed = false;
    const auto take = [&, over](const messages::OutputChunk& chunk) {
        if (is_destroyed) ++num_late;
        if (chunk.finish) {
            EXPECT_EQ(chunk.finish->verdict.code, ErrorCode::kAborted);
            ended.insert(chunk.rid);
            return;
        }
        client.reset();  // also ends this request, through this callback
        is_destroyed = true;
        over->set_value();
    };
    messages::Generate request = prompt("one");
    request.rid = "one";
    client->generate(request, take);
    request.rid = "two";
    client->generate(request, take);
    client->call<messages::Status>(
        messages::Status{},
        [&](const Result<messages::StatusReply>& reply) {
            EXPECT_EQ(reply.error().code, ErrorCode::kAborted);
            ended.insert("status");
        }
    );
    door_->take<messages::Status>();
    const auto [peer, generate] = door_->take<messages::Generate>();
    door_->take<messages::Generate>();
    door_->send_chunk(peer, text_chunk("one", "a", 1));
    ASSERT_EQ(over->get_future().wait_for(kLong), std::future_status::ready);
    EXPECT_EQ(ended, (std::set<std::string>{"one", "two", "status"}));
    EXPECT_EQ(num_late, 0);
    // The client has cancelled both requests at the tree.
    const std::vector<std::string> rids = door_->take<messages::Cancel>().second.rids;
    EXPECT_EQ(
        std::set<std::string>(rids.begin(), rids.end()), (std::set<std::string>{"one", "two"})
    );
}

TEST_F(ClientTest, DestroyedInACallsCallbackItEndsTheRequests) {
    auto client = connect();
    const Stream stream = client->generate(prompt("hello"));
    door_->take<messages::Generate>();
    const auto over = shared_promise<void>();
    client->call<messages::Status>(
        messages::Status{},
        [&, over](const Result<messages::StatusReply>&) {
            client.reset();
            over->set_value();
        }
    );
    const auto [peer, call] = door_->take<messages::Status>();
    messages::StatusReply reply;
    reply.call = call.call;
    door_->send(messages::Door::kAdmin, peer, encode(reply));
    ASSERT_EQ(over->get_future().wait_for(kLong), std::future_status::ready);
    EXPECT_EQ(door_->take<messages::Cancel>().second.rids, std::vector{stream.rid()});
}

TEST_F(ClientTest, DestroyedInTheCallbackThatSaysTheTreeIsLost) {
    auto client = connect();
    const auto over = shared_promise<ErrorCode>();
    int num_others = 0;
    for (int i = 0; i < 3; ++i) {
        client->generate(prompt("hello"), [&, over](const messages::OutputChunk& chunk) {
            if (!client) return void(++num_others);  // called from the destructor below
            const ErrorCode code = chunk.finish->verdict.error().code;
            std::unique_ptr<Client> last = std::move(client);
            last.reset();
            over->set_value(code);
        });
        door_->take<messages::Generate>();
    }
    door_.reset();
    std::future<ErrorCode> code = over->get_future();
    ASSERT_EQ(code.wait_for(kLong), std::future_status::ready);
    EXPECT_EQ(code.get(), ErrorCode::kUnavailable);
    EXPECT_EQ(num_others, 2);
}

TEST_F(ClientTest, DestroyedInARequestsDeadline) {
    auto client = connect();
    const auto over = shared_promise<ErrorCode>();
    client->generate(
        prompt("hello"),
        [&, over](const messages::OutputChunk& chunk) {
            const ErrorCode code = chunk.finish->verdict.error().code;
            client.reset();
            over->set_value(code);
        },
        1ms
    );
    std::future<ErrorCode> code = over->get_future();
    ASSERT_EQ(code.wait_for(kLong), std::future_status::ready);
    EXPECT_EQ(code.get(), ErrorCode::kDeadlineExceeded);
}

TEST_F(ClientTest, DestroyedInRunCallbacksItRunsNoOther) {
    auto client = connect(CallbackThread::kCaller);
    int num_run = 0;
    for (int i = 0; i < 3; ++i) {
        client->generate(
            {},
            [&](const messages::OutputChunk&) {  // an empty request is refused without being sent
                ++num_run;
                client.reset();
            }
        );
    }
    // The three refusals may become ready in one turn of the client's loop or in several.
    pollfd ready{client->ready_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
    client->run_callbacks();
    EXPECT_EQ(client, nullptr);
    EXPECT_EQ(num_run, 1);
}

}  // namespace
}  // namespace pitstop
