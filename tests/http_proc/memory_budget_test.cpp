// The memory of all requests together is bounded, and returned at their end.
#include "http_proc/server/memory_budget.h"

#include "http_proc/generation/generation.h"
#include "http_proc/server/exchange.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

namespace pitstop::http {
namespace {

TEST(MemoryBudget, SharesTogetherStayWithinItAndGoBackAtTheirEnd) {
    MemoryBudget budget(100);
    MemoryBudget::Share first(budget);
    EXPECT_TRUE(first.resize(60));
    {
        MemoryBudget::Share second(budget);
        EXPECT_FALSE(second.resize(41));
        EXPECT_EQ(budget.held_bytes(), 60U);
        EXPECT_TRUE(second.resize(40));
        EXPECT_FALSE(second.resize(std::numeric_limits<std::size_t>::max()));
        EXPECT_TRUE(second.resize(10));
        const MemoryBudget::Share moved(std::move(second));
        EXPECT_EQ(budget.held_bytes(), 70U);
    }
    EXPECT_EQ(budget.held_bytes(), 60U);
}

class SilentWire final : public Wire {
  public:
    void begin(Response) override {}
    Sent send(std::string_view) override { return Sent::kDone; }
    void resume_when_sent(std::coroutine_handle<>) override {}
    [[nodiscard]] bool is_gone() const override { return false; }
};

ServerContext context_of(std::size_t held_bytes_max) {
    ServerOptions options;
    options.limits.held_bytes_max = held_bytes_max;
    return ServerContext(options);
}

messages::Generate prompt_of(std::size_t num_tokens) {
    messages::Generate prompt;
    prompt.input_ids.emplace(num_tokens);
    return prompt;
}

TEST(MemoryBudget, APromptCountsOncePerSample) {
    ServerContext context = context_of(1 << 20);
    SilentWire wire;
    Exchange exchange(Request{}, Grant::kData, context, wire);
    const messages::Generate prompt = prompt_of(1000);
    ASSERT_GT(bytes_of(prompt), 4000U);
    EXPECT_TRUE(exchange.hold(prompt, {.num_copies = 10}));
    EXPECT_EQ(context.memory().held_bytes(), 10 * bytes_of(prompt));
    const Result<> refused = exchange.hold(prompt, {.num_copies = 1000});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);  // would never fit
    EXPECT_EQ(context.memory().held_bytes(), 10 * bytes_of(prompt));
}

TEST(MemoryBudget, PartsOfTheRequestThatAreShownAreHeldToTheEnd) {
    ServerContext context = context_of(1 << 20);
    SilentWire wire;
    Exchange exchange(Request{}, Grant::kData, context, wire);
    const messages::Generate prompt = prompt_of(1000);
    ASSERT_TRUE(exchange.hold(prompt, {.kept_bytes = 5000}));
    EXPECT_EQ(context.memory().held_bytes(), bytes_of(prompt) + 5000);
    exchange.let_go();
    EXPECT_EQ(context.memory().held_bytes(), 5000U);
}

TEST(MemoryBudget, WhereOthersHoldTooMuchTheRefusalIsForNow) {
    ServerContext context = context_of(100'000);
    SilentWire wire;
    Exchange first(Request{}, Grant::kData, context, wire);
    Exchange second(Request{}, Grant::kData, context, wire);
    ASSERT_TRUE(first.hold(prompt_of(1000), {.num_copies = 15}));
    const Result<> refused = second.hold(prompt_of(1000), {.num_copies = 10});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

TEST(MemoryBudget, OncePromptsAreWithTheTreeOnlyWhatIsShownIsHeld) {
    ServerContext context = context_of(1 << 20);
    SilentWire wire;
    MemoryBudget::Share share(context.memory());
    ASSERT_TRUE(share.resize(5000));
    Request request;
    request.body = std::string(5000, 'x');
    Exchange exchange(std::move(request), Grant::kData, context, wire, std::move(share));
    const messages::Generate prompt = prompt_of(1000);
    ASSERT_TRUE(exchange.hold(prompt, {.num_copies = 8, .num_kept = 2}));
    EXPECT_EQ(context.memory().held_bytes(), 5000 + 10 * bytes_of(prompt));
    exchange.let_go();
    EXPECT_EQ(context.memory().held_bytes(), 2 * bytes_of(prompt));
    EXPECT_EQ(exchange.request().body.capacity(), std::string().capacity());
}

TEST(MemoryBudget, ABiasAndStopsAreCopiedToo) {
    messages::Generate plain = prompt_of(1);
    messages::Generate biased = plain;
    for (std::int64_t id = 0; id < 1000; ++id) biased.sampling.logit_bias[id] = 1.0;
    EXPECT_GT(bytes_of(biased), bytes_of(plain) + 1000 * 16);
    messages::Generate stopped = plain;
    stopped.sampling.stop.assign(10, std::string(1000, 'x'));
    EXPECT_GT(bytes_of(stopped), bytes_of(plain) + 10'000);
}

}  // namespace
}  // namespace pitstop::http
