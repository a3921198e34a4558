// --adapter-memory: which versions are resident, and which requests wait. The tokens must equal
// those of a replica with room for all versions.
#include "tests/scheduler_proc/adapters_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::AdapterId;

constexpr std::int64_t kBytes = 1000;  // bytes per adapter, as FakeWorkers report

class AdapterPlacesTest : public AdaptersTest {
  protected:
    // A replica with room for this many.
    void open(std::int64_t num_places, FakeModel model = {.tp = 2}) {
        Rig limited(
            std::move(model), {.adapters_max = 64, .adapter_memory = num_places * kBytes + 999}
        );
        std::swap(rig, limited);
    }
    messages::AdapterStatus status_of(const std::string& name) const {
        for (const messages::AdapterStatus& each : rig.status().adapters) {
            if (each.adapter.name == name) return each;
        }
        return {};
    }
    void expect_answer(RequestKey key, const Ask& ask, std::uint64_t id) {
        EXPECT_EQ(rig.of(key).tokens, expected(ask, id).tokens) << ask.adapter;
        ASSERT_TRUE(rig.of(key).finish) << ask.adapter;
    }
    std::int64_t run_one(const std::string& adapter, std::uint64_t id) {
        const Ask ask = ask_of(adapter);
        const RequestKey key = rig.send(ask);
        rig.run();
        expect_answer(key, ask, id);
        return rig.of(key).counts->cached_tokens;
    }
};

TEST_F(AdapterPlacesTest, TheLeastRecentlyUsedIsEvictedAndComesBackWhenWanted) {
    open(2);
    load("a", 3);
    load("b", 4);
    EXPECT_EQ(run_one("a", 3), 0);
    load("c", 5);
    rig.run();
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{5}})) << "b was used before a";
    EXPECT_TRUE(status_of("b").evicted);
    EXPECT_EQ(status_of("b").bytes, 0);
    EXPECT_EQ(status_of("b").evictions_total, 1);
    EXPECT_EQ(run_one("b", 4), 0);
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}})) << "a was used before c came";
    EXPECT_FALSE(status_of("b").evicted);
    EXPECT_EQ(run_one("a", 3), 12) << "the prefix is still of the same version";
    EXPECT_EQ(raw(status_of("a").adapter.version), 3);
}

// A turn that older conversations keep waiting must not hold the memory of an adapter.
TEST_F(AdapterPlacesTest, ATurnThatWaitsForAnOlderConversationAsksForNoAdapter) {
    SchedulerConfig config;
    config.adapters_max = 64;
    config.adapter_memory = 2 * kBytes + 999;
    config.session_memory = 1;
    Rig small({.num_pages = 25}, config);
    std::swap(rig, small);
    load("a", 3);
    load("b", 4);
    load("c", 5);
    const Ask older{
        .prompt = prompt_of(40, 100),
        .max_new_tokens = 24,
        .adapter = "b",
        .conversation = messages::ConversationId{1}};
    const Ask younger{
        .prompt = prompt_of(36, 500),
        .max_new_tokens = 4,
        .adapter = "a",
        .conversation = messages::ConversationId{2}};
    for (const Ask& first_turn : {older, younger}) {
        rig.send(first_turn);
        rig.run();
    }
    const RequestKey runs = rig.send(older);
    rig.turn();
    rig.step();
    Ask alone = ask_of("c");
    alone.max_new_tokens = 4;
    rig.send(alone);
    for (int i = 0; i < 8; ++i) rig.step();
    ASSERT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}}));
    const RequestKey waits = rig.send(younger);
    for (int i = 0; i < 8; ++i) rig.step();
    ASSERT_FALSE(rig.of(runs).finish);
    EXPECT_TRUE(rig.of(waits).tokens.empty());
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}})) << "c was evicted for it";
    rig.tick = std::chrono::milliseconds(300);
    for (int i = 0; i < 300 && !rig.of(waits).finish; ++i) rig.step();
    expect_answer(waits, younger, 3);
}

TEST_F(AdapterPlacesTest, AdaptersInUseAndPinnedOnesStay) {
    open(2);
    load("a", 3, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
    load("b", 4);
    Ask slow = ask_of("b");
    slow.max_new_tokens = 60;
    const RequestKey first = rig.send(slow);
    rig.turn();
    rig.step();
    load("c", 5);
    for (int i = 0; i < 4; ++i) rig.step();
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{4}})) << "c has no place yet";
    const Ask wants = ask_of("c");
    const RequestKey waits = rig.send(wants);
    const Ask other = ask_of("a");
    const RequestKey passes = rig.send(other);
    for (int i = 0; i < 500 && !rig.of(passes).finish; ++i) rig.step();
    EXPECT_FALSE(rig.of(first).finish);
    EXPECT_EQ(rig.of(waits).tokens.size(), 0u) << "it waits, and others do not";
    expect_answer(passes, other, 3);
    rig.run();
    expect_answer(first, slow, 4);
    expect_answer(waits, wants, 5);
    EXPECT_EQ(resident(), (std::set{AdapterId{3}, AdapterId{5}}));
}

// Requests for the resident adapters never cease; the evicted adapter still gets its turn.
TEST_F(AdapterPlacesTest, P5_NoAdapterWaitsForeverBehindRequestsThatKeepComing) {
    open(1);
    load("a", 3);
    load("b", 4);
    rig.send(ask_of("a"));
    rig.turn();
    rig.step();
    const Ask wants = ask_of("b", 300);
    const RequestKey waits = rig.send(wants);
    for (int i = 0; i < 400 && !rig.of(waits).finish; ++i) {
        if (i % 5 == 0) rig.send(ask_of("a", 100 + i));
        if (!rig.step()) rig.turn();
    }
    expect_answer(waits, wants, 4);
    rig.run();
    for (const auto& [key, got] : rig.all()) EXPECT_EQ(got.tokens.size(), 24u);
}

TEST_F(AdapterPlacesTest, P2_AnAdapterThatCannotBeRestoredIsLostAndNamed) {
    open(1);
    load("a", 3);
    load("b", 4);
    rig.run();
    EXPECT_EQ(resident(), std::set{AdapterId{4}});
    rig.workers.restore_failures[AdapterId{3}] = {
        std::nullopt, Error{ErrorCode::kDataLoss, "other bytes"}};
    const RequestKey waits = rig.send(ask_of("a"));
    rig.run();
    EXPECT_TRUE(rig.of(waits).tokens.empty());
    EXPECT_EQ(rig.of(waits).finish->verdict.code, ErrorCode::kDataLoss);
    const RequestKey later = rig.send(ask_of("a"));
    rig.run();
    EXPECT_EQ(rig.of(later).finish->verdict.code, ErrorCode::kNotFound);
    const std::string& why = rig.of(later).finish->verdict.message;
    EXPECT_TRUE(why.starts_with("no adapter 'a' is loaded: version 3 ('step-2') with digest "))
        << why;
    EXPECT_EQ(rig.status().lost_adapters.size(), 1u);
    EXPECT_EQ(rig.workers.evicted(), std::set{AdapterId{4}}) << "the workers forget the other";
    load("a", 5);
    EXPECT_EQ(run_one("a", 5), 0);
    EXPECT_TRUE(rig.status().lost_adapters.empty());
}

// The counts go on, because nothing was unloaded.
TEST_F(AdapterPlacesTest, AnAdapterThatIsLostAndLoadedAgainKeepsItsCounts) {
    open(1);
    load("a", 3);
    run_one("a", 3);
    load("b", 4);
    rig.run();
    rig.workers.restore_failures[AdapterId{3}] = {
        std::nullopt, Error{ErrorCode::kDataLoss, "other bytes"}};
    rig.send(ask_of("a"));
    rig.run();
    ASSERT_EQ(rig.status().lost_adapters.size(), 1u);
    load("a", 5);
    run_one("a", 5);
    EXPECT_EQ(status_of("a").loads_total, 2);
    EXPECT_EQ(status_of("a").requests_total, 3) << "with the one that found it lost";
    EXPECT_EQ(status_of("a").output_tokens_total, 48);
    EXPECT_EQ(status_of("a").evictions_total, 1);
    rig.workers.restore_failures[AdapterId{5}] = {
        std::nullopt, Error{ErrorCode::kDataLoss, "other bytes"}};
    run_one("b", 4);
    rig.send(ask_of("a"));
    rig.run();
    ASSERT_EQ(rig.status().lost_adapters.size(), 1u);
    EXPECT_EQ(unload("a").verdict.code, ErrorCode::kNotFound) << "and forgets it";
    load("a", 6);
    EXPECT_EQ(status_of("a").requests_total, 0);
    EXPECT_EQ(status_of("a").loads_total, 1);
}

TEST_F(AdapterPlacesTest, AnErrorThatMayPassEndsTheRequestAndNotTheAdapter) {
    open(1);
    load("a", 3);
    load("b", 4);
    rig.run();
    rig.workers.restore_failures[AdapterId{3}] = {
        Error{ErrorCode::kResourceExhausted, "no memory"}, std::nullopt};
    const RequestKey waits = rig.send(ask_of("a"));
    rig.run();
    EXPECT_EQ(rig.of(waits).finish->verdict.code, ErrorCode::kResourceExhausted);
    rig.workers.restore_failures.clear();
    EXPECT_EQ(run_one("a", 3), 0);
    EXPECT_EQ(run_one("b", 4), 0);
}

TEST_F(AdapterPlacesTest, P5_ARankThatDoesNotRestoreEndsTheWait) {
    open(1);
    load("a", 3);
    load("b", 4);
    rig.run();
    rig.workers.is_silent = {false, true};
    const RequestKey waits = rig.send(ask_of("a"));
    const Ask other = ask_of("b");
    const RequestKey passes = rig.send(other);
    rig.run();
    expect_answer(passes, other, 4);
    EXPECT_FALSE(rig.of(waits).finish);
    rig.now += AdapterPlaces::kRestoreMax;
    rig.turn();
    ASSERT_TRUE(rig.of(waits).finish);
    EXPECT_EQ(rig.of(waits).finish->verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(
        rig.of(waits).finish->verdict.message,
        "the adapter was evicted, and rank 1 has not restored it in 60 s"
    );
}

TEST_F(AdapterPlacesTest, PinnedAdaptersMayLeaveNoRoomForAnother) {
    open(2);
    load("a", 3);
    load("b", 4, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
    load("c", 5, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
    rig.run();
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}}));
    const RequestKey key = rig.send(ask_of("a"));
    rig.run();
    EXPECT_EQ(rig.of(key).finish->verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(unload("b").verdict.is_done());
    EXPECT_EQ(run_one("a", 3), 0);
}

TEST_F(AdapterPlacesTest, P4_AnUnloadOfAnEvictedAdapterEndsNoRequest) {
    open(1);
    load("a", 3);
    load("b", 4);
    Ask slow = ask_of("b");
    const RequestKey first = rig.send(slow);
    rig.turn();
    rig.step();
    const Ask wants = ask_of("a");
    const RequestKey waits = rig.send(wants);
    rig.turn();
    EXPECT_EQ(unload("a").num_requests, 1);
    EXPECT_TRUE(unload("b").verdict.is_done());
    rig.run();
    expect_answer(first, slow, 4);
    expect_answer(waits, wants, 3);
    EXPECT_TRUE(resident().empty());
    EXPECT_TRUE(rig.workers.evicted().empty());
}

TEST_F(AdapterPlacesTest, P3_ANewVersionThatOpenRequestsTakeIsInUse) {
    open(1);
    load("a", 3);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 4; ++i) rig.step();
    load("a", 4, messages::AdapterPolicy::kKeep);
    load("b", 5);
    rig.run();
    EXPECT_EQ(versions_of(rig.of(key)), (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(rig.of(key).tokens, by_spans(ask, rig.of(key)));
}

// Returns the numbers of the orders in `out` that are about this version, oldest first.
std::vector<std::uint64_t> take_orders(TurnOutput& out, AdapterId id) {
    std::vector<std::uint64_t> orders;
    for (const ToWorkers& message : std::exchange(out.workers, {})) {
        const auto& order = std::get<messages::WorkerAdapters>(message);
        for (const auto* ids : {&order.evict, &order.restore})
            if (std::ranges::find(*ids, id) != ids->end()) orders.push_back(order.order);
    }
    return orders;
}

// Answers may be repeated. An answer to an earlier order says nothing about the latest order.
TEST(AdapterPlaces, P2_AnAnswerToAnEarlierOrderDoesNotCount) {
    constexpr AdapterId kA{3}, kB{4};
    constexpr TimePoint kNow{std::chrono::seconds(100)};
    AdapterPlaces places(kBytes, /*tp=*/1);
    TurnOutput out;
    places.add(kA, kBytes, AdapterPlaces::Pinned::kNo);
    places.add(kB, kBytes, AdapterPlaces::Pinned::kNo);
    places.advance(kNow, {}, out);
    const std::uint64_t evicted = take_orders(out, kA).at(0);
    const auto bring = [&](AdapterId id) {
        EXPECT_FALSE(places.may_start(id));
        places.advance(kNow, {}, out);
        return take_orders(out, id).at(0);
    };
    const std::uint64_t first = bring(kA);
    EXPECT_TRUE(places.record({.order = first, .id = kA}, out));
    EXPECT_TRUE(places.record({.order = bring(kB), .id = kB}, out));
    const std::uint64_t second = bring(kA);
    EXPECT_LT(evicted, first);
    EXPECT_LT(first, second);
    EXPECT_FALSE(places.record({.order = first, .id = kA}, out));
    EXPECT_FALSE(places.is_resident(kA));
    EXPECT_FALSE(places.record(kNow, {.order = evicted, .id = kA}, out));
    EXPECT_FALSE(places.next_deadline() == kNow + AdapterPlaces::kRest);
    EXPECT_TRUE(places.record({.order = second, .id = kA}, out));
    EXPECT_TRUE(places.is_resident(kA));
}

// A full disk: one rank fails to write its file, after another rank has written its own.
TEST_F(AdapterPlacesTest, AnAdapterThatCannotBeEvictedIsInMemoryOnAllRanksAndCounted) {
    open(1);
    load("c", 3);
    load("a", 4);
    rig.run();
    rig.workers.eviction_failures[AdapterId{4}] = {
        std::nullopt, Error{ErrorCode::kResourceExhausted, "the disk is full"}};
    load("b", 5);
    rig.run();
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}}));
    for (const std::string name : {"a", "b"}) {
        EXPECT_FALSE(status_of(name).evicted) << name;
        EXPECT_EQ(status_of(name).evictions_total, 0) << name;
        EXPECT_GT(status_of(name).bytes, 0) << name;
    }
    EXPECT_EQ(run_one("a", 4), 0);
    EXPECT_EQ(run_one("b", 5), 0);
    const std::string why =
        "no room for the adapter: a worker has 1999 bytes for adapters (--adapter-memory), and one "
        "that is to make room could not be evicted: the disk is full";
    const RequestKey waits = rig.send(ask_of("c"));
    rig.run();
    ASSERT_TRUE(rig.of(waits).finish) << "it does not wait for a disk";
    EXPECT_EQ(rig.of(waits).finish->verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(rig.of(waits).finish->verdict.message, why);
    const messages::UpdatePart refused = stage("d", 6);
    EXPECT_EQ(refused.verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(refused.verdict.message, why);
    rig.workers.eviction_failures.clear();
    rig.now += AdapterPlaces::kRest;
    EXPECT_EQ(run_one("c", 3), 0);
    EXPECT_EQ(resident(), std::set{AdapterId{3}});
    EXPECT_EQ(status_of("a").evictions_total, 1);
    EXPECT_EQ(run_one("a", 4), 12);
}

// A retracted request's version stays resident, whatever else is wanted or loaded.
TEST_F(AdapterPlacesTest, P4_ARequestThatRanBeforeGoesOnWithItsVersion) {
    open(1);
    load("a", 3);
    load("c", 4);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 8; ++i) rig.step();
    EXPECT_FALSE(rig.of(key).tokens.empty());
    rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = messages::PauseMode::kRetract}
    );
    rig.run();
    load("b", 5, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
    const Ask wants = ask_of("c");
    const RequestKey waits = rig.send(wants);
    rig.control(messages::ContinueGeneration{.call = CallId{2}});
    rig.run();
    expect_answer(key, ask, 3);
    EXPECT_EQ(rig.of(key).finish->verdict.message, "");
    EXPECT_EQ(rig.of(waits).finish->verdict.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(resident(), std::set{AdapterId{5}});
}

TEST_F(AdapterPlacesTest, APinnedVersionThatIsReplacedOrUnloadedKeepsNoPin) {
    for (const bool is_unloaded : {false, true}) {
        open(2);
        load("a", 3, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
        load("b", 4);
        Ask slow = ask_of("a");
        slow.max_new_tokens = 60;
        const RequestKey first = rig.send(slow);
        rig.turn();
        rig.step();
        if (is_unloaded) {
            EXPECT_TRUE(unload("a").verdict.is_done());
        } else {
            load("a", 5);
        }
        load("c", 6, messages::AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
        const Ask wants = ask_of("b");
        const RequestKey waits = rig.send(wants);
        rig.run();
        expect_answer(first, slow, 3);
        expect_answer(waits, wants, 4);
    }
}

// Requests, loads and unloads in random order. FakeWorkers report a row that uses a version which
// is not resident. Every request ends, and afterwards only `num_places` versions are resident.
TEST_F(AdapterPlacesTest, P6_WithFewPlacesEachRequestGetsItsOwn) {
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        std::mt19937 random(seed);
        const auto any = [&](int num) {
            return static_cast<int>(random() % static_cast<unsigned>(num));
        };
        const int num_places = 1 + any(4);
        open(num_places, {.tp = 1 + any(2), .num_pages = any(2) == 0 ? 64 : 16});
        std::map<std::string, std::uint64_t> loaded;
        struct Sent {
            RequestKey key{};
            Ask ask{};
            std::uint64_t id = 0;
        };
        std::vector<Sent> sent;
        std::uint64_t last_id = 2;
        for (int i = 0; i < 300; ++i) {
            const std::string name(1, static_cast<char>('a' + any(12)));
            if (any(6) == 0) {
                load(name, ++last_id);
                loaded[name] = last_id;
            } else if (any(30) == 0 && loaded.contains(name)) {
                EXPECT_TRUE(unload(name).verdict.is_done());
                loaded.erase(name);
            } else if (loaded.contains(name)) {
                Ask ask = ask_of(name, 100 + 20 * any(3));
                ask.max_new_tokens = 1 + any(20);
                const RequestKey key = rig.send(ask);
                rig.turn();
                sent.push_back({key, ask, loaded.at(name)});
            }
            for (int n = any(4); n > 0; --n) rig.step();
        }
        rig.run();
        for (const Sent& each : sent) expect_answer(each.key, each.ask, each.id);
        EXPECT_LE(std::ssize(resident()), num_places) << "seed " << seed;
        std::size_t num = loaded.size();
        for (const messages::AdapterStatus& each : rig.status().adapters)
            if (each.previous) ++num;
        EXPECT_EQ(resident().size() + rig.workers.evicted().size(), num);
        if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace pitstop::scheduler
