// The changes that a call sends for arrays that stay on a device. After the reference of the
// device's kernel has applied them, memory must have what the call placed, whatever it had before.
#include "tp_worker/model/standing_arrays.h"

#include "kernels/word_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace pitstop::tp_worker {
namespace {

struct Pair {
    float a = 0.f;
    std::int32_t b = 0;
};

constexpr std::int64_t kPairsMax = 37;
constexpr std::int64_t kIdsMax = 51;
constexpr std::int64_t kBytes = StandingArrays::bytes_of(kPairsMax * std::int64_t{sizeof(Pair)}) +
                                StandingArrays::bytes_of(kIdsMax * std::int64_t{sizeof(int)});

class Standing : public testing::Test {
  protected:
    // Places both arrays, applies the changes, and compares. Returns the number of words sent.
    std::size_t call(std::vector<Pair> pairs, std::vector<std::int32_t> ids) {
        standing_.begin_call();
        const Pair* const device_pairs = standing_.place(std::span(pairs), kPairsMax);
        const std::int32_t* const device_ids = standing_.place(std::span(ids), kIdsMax);
        const std::span<const std::int32_t> update = standing_.update();
        if (!update.empty()) {
            EXPECT_EQ(std::ssize(update), kernels::WordUpdate::read(update.data()).num_words());
            kernels::word_runs_ref({.update = update.data(), .words = standing_.device_words()});
        }
        EXPECT_TRUE(std::ranges::equal(
            std::as_bytes(std::span(device_pairs, pairs.size())), std::as_bytes(std::span(pairs))
        ));
        EXPECT_TRUE(std::ranges::equal(std::span(device_ids, ids.size()), ids));
        return update.size();
    }
    static constexpr std::size_t kHead = kernels::WordUpdate::kWords;
    static constexpr std::size_t kRun = kernels::WordUpdate::kRunWords;

  private:
    std::vector<std::int32_t> there_ = std::vector<std::int32_t>(kBytes / 4);
    StandingArrays standing_{reinterpret_cast<std::byte*>(there_.data()), kBytes};
};

TEST_F(Standing, UnchangedWordsAreNotSent) {
    const std::vector<Pair> pairs{{1.f, 2}, {3.f, 4}};
    const std::vector<std::int32_t> ids{7, 8, 9};
    EXPECT_EQ(call(pairs, ids), kHead + 2 * kRun + 7);
    EXPECT_EQ(call(pairs, ids), 0u);
    EXPECT_EQ(call(pairs, {7, 8, 10}), kHead + kRun + 1);
    EXPECT_EQ(call({{1.f, 2}, {3.f, 5}}, {7, 8, 10}), kHead + kRun + 1);
}

// Removing or adding a row at the end leaves the other rows in place. The array also remembers the
// removed row.
TEST_F(Standing, AnArrayThatGrowsOrShrinksLeavesTheOthers) {
    const std::vector<std::int32_t> ids{7, 8, 9};
    call({{1.f, 2}}, ids);
    EXPECT_EQ(call({{1.f, 2}, {3.f, 4}}, ids), kHead + kRun + 2);
    EXPECT_EQ(call({{1.f, 2}}, ids), 0u);
    EXPECT_EQ(call({{1.f, 2}, {3.f, 4}}, ids), 0u);
    EXPECT_EQ(call({}, {}), 0u);
    EXPECT_EQ(call({{1.f, 2}}, {7, 8, 9, 0}), 0u);  // zeros were there from the start
}

// Unchanged words are sent within a run if another run would cost more.
TEST_F(Standing, NoUpdateIsLargerThanItsArrays) {
    std::vector<std::int32_t> ids(kIdsMax, 1);
    call({}, ids);
    ids[3] = ids[7] = 2;  // three words between them
    EXPECT_EQ(call({}, ids), kHead + kRun + 5);
    ids[20] = ids[25] = 2;  // four
    EXPECT_EQ(call({}, ids), kHead + 2 * kRun + 2);
    for (std::size_t i = 0; i < ids.size(); i += 2) ids[i] = 3;
    EXPECT_EQ(call({}, ids), kHead + kRun + ids.size());
}

TEST_F(Standing, HoldWhatWasPlacedThroughAnyCalls) {
    std::mt19937 random(11);
    std::vector<Pair> pairs;
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 500; ++i) {
        pairs.resize(random() % (kPairsMax + 1));
        ids.resize(random() % (kIdsMax + 1));
        for (Pair& pair : pairs) {
            if (random() % 5 == 0) pair.b = static_cast<std::int32_t>(random() % 3);
        }
        for (std::int32_t& id : ids) {
            if (random() % 3 == 0) id = static_cast<std::int32_t>(random() % 3);
        }
        const std::size_t num = call(pairs, ids);
        EXPECT_LE(num, kHead + 2 * kRun + 2 * pairs.size() + ids.size());
    }
}

TEST(StandingOnTheCpu, AreTheHostsArrays) {
    StandingArrays standing;
    std::vector<std::int32_t> ids{1, 2};
    standing.begin_call();
    EXPECT_EQ(standing.place(std::span(ids), 2), ids.data());
    EXPECT_TRUE(standing.update().empty());
}

}  // namespace
}  // namespace pitstop::tp_worker
