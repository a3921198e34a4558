// The open requests alone: which run, which wait, and what a request keeps when that changes.
#include "scheduler_proc/open_requests.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr TimePoint kStart{std::chrono::seconds(100)};
const ModelLimits kLimits{.context_len = 32, .vocab_size = 100, .pool_tokens = 32};

class OpenRequestsTest : public testing::Test {
  protected:
    Request& add(std::uint64_t key, std::int64_t priority = 0) {
        messages::TokenizedRequest arrived{.key = RequestKey{key}};
        arrived.prompt.values.assign(3, TokenId{5});
        arrived.sampling.max_new_tokens = 4;
        arrived.priority = priority;
        requests.add(std::move(arrived), kLimits, kStart);
        return *requests.find(RequestKey{key});
    }

    // Takes the first request out of the queue and runs it in slot `slot`.
    Request& start(int slot) {
        Request& request = *requests.first_waiting();
        requests.pop_waiting();
        request.was_admitted = true;
        request.progress.start(0);
        requests.start(request, {.slot = static_cast<SlotId>(slot), .pages = {PageId{slot}}});
        return request;
    }

    std::vector<std::uint64_t> running() const {
        std::vector<std::uint64_t> keys;
        for (const Request* request : requests.running()) keys.push_back(raw(request->key));
        return keys;
    }

    std::string audit(const std::map<RequestKey, std::int64_t>& num_sampled = {}) const {
        return requests.audit(num_sampled).value_or("");
    }

    OpenRequests requests{Fairness::kFcfs};
};

TEST_F(OpenRequestsTest, ARequestWaitsThenRunsThenIsGone) {
    EXPECT_EQ(requests.first_waiting(), nullptr);
    Request& request = add(1);
    EXPECT_EQ(request.arrived_at, kStart);
    EXPECT_EQ(requests.first_waiting(), &request);
    EXPECT_EQ(requests.num_waiting(), 1);
    EXPECT_FALSE(requests.has_started());
    start(0);
    EXPECT_TRUE(request.is_running());
    EXPECT_TRUE(request.needs_setup);
    EXPECT_EQ(request.run, 1);
    EXPECT_EQ(requests.num_waiting(), 0);
    EXPECT_EQ(requests.num_running(), 1);
    EXPECT_EQ(requests.describe_page_holders(), "1 requests hold 1 pages");
    EXPECT_EQ(audit(), "");
    const Lease lease = requests.remove(request);
    EXPECT_EQ(lease.slot, SlotId{0});
    EXPECT_EQ(lease.pages, std::vector{PageId{0}});
    EXPECT_FALSE(requests.has(RequestKey{1}));
    EXPECT_EQ(requests.find(RequestKey{1}), nullptr);
    EXPECT_EQ(requests.num_open(), 0);
    EXPECT_EQ(requests.num_running(), 0);
    EXPECT_EQ(audit(), "");
}

TEST_F(OpenRequestsTest, AWaitingRequestHoldsNothing) {
    const Lease lease = requests.remove(add(1));
    EXPECT_FALSE(lease.slot);
    EXPECT_TRUE(lease.pages.empty());
    EXPECT_EQ(requests.first_waiting(), nullptr);
    EXPECT_EQ(requests.num_open(), 0);
}

TEST_F(OpenRequestsTest, TheEldestOfTheHighestPriorityIsFirstAmongThoseThatRun) {
    add(1);
    start(0);
    add(2, 5);
    start(1);
    add(3);
    start(2);
    EXPECT_EQ(running(), (std::vector<std::uint64_t>{2, 1, 3}));
    EXPECT_EQ(audit(), "");
}

TEST_F(OpenRequestsTest, P4_ARetractedRequestIsFirstAndKeepsItsTokensAndThoseBeingSampled) {
    Request& request = add(1);
    add(2);
    start(0);
    request.progress.plan(3, /*samples=*/true);
    const std::int64_t run = request.run;
    const Lease lease = requests.retract(request);
    EXPECT_EQ(lease.slot, SlotId{0});
    EXPECT_FALSE(request.is_running());
    EXPECT_EQ(request.tokens.size(), 3u);
    EXPECT_EQ(request.progress.pending(), 1);
    EXPECT_EQ(request.progress.planned(), 0);
    EXPECT_EQ(request.run, run) << "the step in flight still counts";
    EXPECT_EQ(request.num_retractions, 1);
    EXPECT_EQ(requests.first_waiting(), &request) << "before who is new";
    EXPECT_EQ(requests.num_retracted(), 1);
    EXPECT_TRUE(requests.has_started());
    EXPECT_EQ(audit({{RequestKey{1}, 1}}), "");
    EXPECT_EQ(audit(), "request 1: pending tokens do not add up");
}

TEST_F(OpenRequestsTest, APrefillThatWasGivenUpStartsOver) {
    Request& request = add(1);
    start(0);
    request.progress.plan(2, /*samples=*/false);
    request.scores.logprobs = {-1.0F};
    const std::int64_t run = request.run;
    std::ignore = requests.retract(request);
    EXPECT_NE(request.run, run) << "a result of before is not its own";
    EXPECT_TRUE(request.scores.logprobs.empty());
    EXPECT_EQ(audit(), "");
}

TEST_F(OpenRequestsTest, ThoseThatRanBeforeAreToldFromThoseThatOnlyWaited) {
    Request& one = add(1);
    add(2);
    Request& three = add(3, 1);
    start(0);  // starts request 3
    start(1);  // starts request 1
    std::ignore = requests.retract(one);
    EXPECT_EQ(requests.num_started(), 2);
    using Which = OpenRequests::Which;
    EXPECT_EQ(requests.all(Which::kStarted), (std::vector{&one, &three}));
    EXPECT_EQ(requests.all(Which::kAll).size(), 3u);
    EXPECT_EQ(requests.last_of_largest().key, RequestKey{2});
}

TEST_F(OpenRequestsTest, TheAuditFindsRequestsThatNeitherRunNorWaitOrKeepPages) {
    Request& request = add(1);
    requests.pop_waiting();
    EXPECT_EQ(audit(), "a request neither runs nor waits");
    requests.put_back(request);
    EXPECT_EQ(audit(), "");
    request.lease.pages.push_back(PageId{1});
    EXPECT_EQ(audit(), "request 1: waits and holds pages");
    request.lease.pages.clear();
    request.tokens.push_back(TokenId{1});
    EXPECT_EQ(audit(), "request 1: has other tokens");
}

}  // namespace
}  // namespace pitstop::scheduler
