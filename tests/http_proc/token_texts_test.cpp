// Tests that requests share one load of the tokens' texts, with its result or its error.
#include "http_proc/server/token_texts.h"

#include "http_proc/server/tree.h"
#include "tests/client/fake_door.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);  // only a failing test waits so long

class TokenTextsTest : public ::testing::Test {
  protected:
    std::unique_ptr<Client> connect() {
        auto client =
            Client::connect({.run_dir = dir_.path(), .callbacks = CallbackThread::kCaller});
        CHECK(client.has_value());
        return *std::move(client);
    }
    // Begins a request that needs the texts; its result goes into `ends`.
    void begin() { run_detached(load()); }
    Task<> load() {
        const std::size_t place = ends.size();
        ends.emplace_back();
        const Result<> loaded = co_await tree_.token_texts().load(tree_);
        ends[place] = loaded;
    }
    // Runs the callbacks until so many requests have their result.
    void wait_for(std::size_t num) {
        const TimePoint deadline = Clock::now() + kPatience;
        while (num_ended() < num && Clock::now() < deadline) {
            ::pollfd ready{.fd = tree_.client().ready_fd(), .events = POLLIN, .revents = 0};
            ::poll(&ready, 1, /*timeout=*/100);
            tree_.client().run_callbacks();
        }
        ASSERT_EQ(num_ended(), num);
    }
    [[nodiscard]] std::size_t num_ended() const {
        return static_cast<std::size_t>(std::ranges::count_if(ends, [](const auto& end) {
            return end.has_value();
        }));
    }
    // Answers a load whose token 7 has this text.
    void answer(const std::pair<std::string, messages::Tokenize>& call, const std::string& text) {
        messages::TokenizeReply reply;
        reply.call = call.second.call;
        reply.texts.resize(call.second.ids->size(), "x");
        reply.texts[7] = text;
        door_->send(messages::Door::kData, call.first, encode(reply));
    }
    void refuse(const std::pair<std::string, messages::Tokenize>& call, Error error) {
        messages::ErrorReply reply;
        reply.call = call.second.call;
        reply.error = std::move(error);
        door_->send(messages::Door::kData, call.first, encode(reply));
    }
    // Waits until everything sent before has arrived at the door.
    void wait_for_arrivals() {
        std::optional<bool> is_answered;
        tree_.client().call<messages::Status>({}, [&](const Result<messages::StatusReply>& reply) {
            is_answered = reply.has_value();
        });
        const auto [peer, call] = door_->take<messages::Status>();
        messages::StatusReply reply;
        reply.call = call.call;
        door_->send(messages::Door::kAdmin, peer, encode(reply));
        const TimePoint deadline = Clock::now() + kPatience;
        while (!is_answered && Clock::now() < deadline) tree_.client().run_callbacks();
        ASSERT_EQ(is_answered, true);
    }
    void wait_for_tree(std::uint64_t number) {
        const TimePoint deadline = Clock::now() + kPatience;
        while ((tree_.number() != number || !tree_.client().is_connected()) &&
               Clock::now() < deadline)
            std::this_thread::yield();
        ASSERT_EQ(tree_.number(), number);
    }
    [[nodiscard]] std::string_view text() { return tree_.token_texts().of(TokenId{7}); }

    TempDir dir_;
    std::optional<FakeDoor> door_{std::in_place, dir_.path()};
    Tree tree_{connect()};
    std::vector<std::optional<Result<>>> ends{};
};

TEST_F(TokenTextsTest, RequestsAtOnceShareALoad) {
    for (int i = 0; i < 5; ++i) begin();
    const auto call = door_->take<messages::Tokenize>();
    EXPECT_EQ(call.second.ids->size(), 100U);
    EXPECT_TRUE(call.second.each_token);
    wait_for_arrivals();
    EXPECT_FALSE(door_->has<messages::Tokenize>());
    answer(call, "seven");
    wait_for(5);
    for (const auto& end : ends) EXPECT_TRUE(end && end->has_value());
    EXPECT_EQ(text(), "seven");
    begin();
    EXPECT_EQ(num_ended(), 6U);  // at once
}

TEST_F(TokenTextsTest, RequestsShareALoadsErrorAndTheNextOneLoadsAgain) {
    for (int i = 0; i < 3; ++i) begin();
    refuse(door_->take<messages::Tokenize>(), {ErrorCode::kResourceExhausted, "too much text"});
    wait_for(3);
    for (const auto& end : ends) {
        ASSERT_TRUE(end && !end->has_value());
        EXPECT_EQ(end->error().code, ErrorCode::kResourceExhausted);
        EXPECT_EQ(end->error().message, "too much text");
    }
    wait_for_arrivals();
    EXPECT_FALSE(door_->has<messages::Tokenize>());
    begin();
    answer(door_->take<messages::Tokenize>(), "seven");
    wait_for(4);
    EXPECT_TRUE(ends.back() && ends.back()->has_value());
}

TEST_F(TokenTextsTest, ALoadOfALostTreeEndsItsRequestsAlone) {
    for (int i = 0; i < 2; ++i) begin();
    door_->take<messages::Tokenize>();
    door_.reset();
    door_.emplace(dir_.path());
    // No callback has run: the first requests still wait when the next tree gets its own.
    wait_for_tree(2);
    for (int i = 0; i < 2; ++i) begin();
    const auto call = door_->take<messages::Tokenize>();
    wait_for(2);
    for (std::size_t i = 0; i < 2; ++i) {
        ASSERT_TRUE(ends[i] && !ends[i]->has_value());
        EXPECT_EQ(ends[i]->error().code, ErrorCode::kUnavailable);
    }
    begin();
    wait_for_arrivals();
    EXPECT_FALSE(door_->has<messages::Tokenize>());
    answer(call, "another's");
    wait_for(5);
    for (std::size_t i = 2; i < 5; ++i) EXPECT_TRUE(ends[i] && ends[i]->has_value());
    EXPECT_EQ(text(), "another's");
}

// The answer of a tree that another one has replaced meanwhile has the wrong texts.
TEST_F(TokenTextsTest, RequestsWhoseTreeWasReplacedGetTheTextsOfTheNext) {
    for (int i = 0; i < 2; ++i) begin();
    answer(door_->take<messages::Tokenize>(), "the first's");
    ::pollfd ready{.fd = tree_.client().ready_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, /*timeout=*/20'000), 1);  // the answer waits to be read
    door_.reset();
    door_.emplace(dir_.path());
    wait_for_tree(2);
    begin();
    const auto call = door_->take<messages::Tokenize>();
    tree_.client().run_callbacks();
    EXPECT_EQ(num_ended(), 0U);
    answer(call, "the second's");
    wait_for(3);
    for (const auto& end : ends) EXPECT_TRUE(end && end->has_value());
    EXPECT_EQ(text(), "the second's");
    EXPECT_FALSE(door_->has<messages::Tokenize>());
}

}  // namespace
}  // namespace pitstop::http
