// The changes that a step sends for its rows and pages. After the reference of the device's kernel
// has applied them, memory must have the step's own data, whatever it had before.
#include "tp_worker/model/step_updates.h"

#include "kernels/step_rows.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/step_padding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kNumSlots = 6;
constexpr std::int64_t kPageSize = 4;
constexpr std::int64_t kNumPositions = 42;
constexpr std::int64_t kSlotPages = 11;
constexpr std::int32_t kScratchPage = 500;
constexpr std::int64_t kRowsMax = 16;

// A request, as the scheduler knows it.
struct Held {
    SlotId slot{};
    TokenId token{};
    std::int32_t position = 0;  // of the token in this step
    std::vector<PageId> pages{};
};

// A step of some requests, one token each.
struct Step {
    explicit Step(const std::vector<Held>& requests) {
        for (const Held& held : requests) {
            tokens.push_back(held.token);
            positions.push_back(held.position);
            kv_lens.push_back(held.position + 1);
            page_starts.push_back(static_cast<std::int32_t>(pages.size()));
            slots.push_back(held.slot);
            pages.insert(pages.end(), held.pages.begin(), held.pages.end());
        }
    }
    // The batch borrows from this object.
    [[nodiscard]] StepBatch batch(bool is_padded) const {
        StepBatch batch;
        batch.tokens = tokens;
        batch.positions = positions;
        batch.kv_lens = kv_lens;
        batch.page_starts = page_starts;
        batch.pages = pages;
        batch.slots = slots;
        if (is_padded) batch.num_padded = padded_rows(static_cast<std::int64_t>(slots.size()));
        return batch;
    }

    std::vector<TokenId> tokens{};
    std::vector<std::int32_t> positions{};
    std::vector<std::int32_t> kv_lens{};
    std::vector<std::int32_t> page_starts{};
    std::vector<PageId> pages{};
    std::vector<SlotId> slots{};
};

// The memory on the device.
class There {
  public:
    void apply(std::span<const std::int32_t> update, std::int64_t num_rows) {
        kernels::step_rows_ref(
            {.update = update.data(),
             .num_rows = static_cast<std::int32_t>(num_rows),
             .page_size = kPageSize,
             .slot_pages = kSlotPages,
             .num_slots = kNumSlots,
             .scratch_page = kScratchPage,
             .tokens = tokens_.data(),
             .positions = positions_.data(),
             .kv_slots = kv_slots_.data(),
             .kv_lens = kv_lens_.data(),
             .page_starts = page_starts_.data(),
             .tables = tables_.data()}
        );
    }
    void expect_pages(const std::vector<Held>& requests) const {
        for (const Held& held : requests) {
            const auto num = static_cast<std::size_t>(held.position / kPageSize + 1);
            const auto begin = static_cast<std::size_t>(raw(held.slot) * kSlotPages);
            for (std::size_t i = 0; i < num; ++i)
                EXPECT_EQ(tables_[begin + i], held.pages[i]) << raw(held.slot) << " page " << i;
        }
    }
    void expect_rows(const std::vector<Held>& requests, std::int64_t num_rows) const {
        std::set<std::int64_t> places;
        for (std::size_t r = 0; r < static_cast<std::size_t>(num_rows); ++r) {
            SCOPED_TRACE(testing::Message() << "row " << r);
            EXPECT_TRUE(places.insert(kv_slots_[r]).second);
            EXPECT_EQ(kv_lens_[r], positions_[r] + 1);
            if (r < requests.size()) {
                const Held& held = requests[r];
                const auto page = static_cast<std::size_t>(held.position / kPageSize);
                EXPECT_EQ(tokens_[r], held.token);
                EXPECT_EQ(positions_[r], held.position);
                EXPECT_EQ(page_starts_[r], raw(held.slot) * kSlotPages);
                EXPECT_EQ(
                    kv_slots_[r],
                    std::int64_t{raw(held.pages[page])} * kPageSize + held.position % kPageSize
                );
            } else {
                EXPECT_EQ(tokens_[r], TokenId{-1});
                EXPECT_EQ(positions_[r], 0);
                EXPECT_GE(page_starts_[r], kNumSlots * kSlotPages);
                EXPECT_LT(page_starts_[r], std::ssize(tables_));
                EXPECT_GE(kv_slots_[r], kScratchPage * kPageSize);
                EXPECT_LT(kv_slots_[r], (kScratchPage + num_scratch_pages(kPageSize)) * kPageSize);
            }
        }
    }

  private:
    std::vector<TokenId> tokens_ = std::vector<TokenId>(kRowsMax, TokenId{-77});
    std::vector<std::int32_t> positions_ = std::vector<std::int32_t>(kRowsMax, -77);
    std::vector<std::int64_t> kv_slots_ = std::vector<std::int64_t>(kRowsMax, -77);
    std::vector<std::int32_t> kv_lens_ = std::vector<std::int32_t>(kRowsMax, -77);
    std::vector<std::int32_t> page_starts_ = std::vector<std::int32_t>(kRowsMax, -77);
    std::vector<PageId> tables_ = std::vector<PageId>(
        static_cast<std::size_t>(StepUpdates::num_entries(kNumSlots, kNumPositions, kPageSize)),
        PageId{-77}
    );
};

// Requests with tokens at `position`, in pages of their own.
std::vector<Held> requests_at(std::int32_t position, std::vector<std::int32_t> slots) {
    std::vector<Held> requests;
    for (const std::int32_t slot : slots) {
        Held held{
            .slot = static_cast<SlotId>(slot),
            .token = static_cast<TokenId>(100 + slot),
            .position = position};
        for (std::int32_t page = 0; page <= kNumPositions / kPageSize; ++page)
            held.pages.push_back(static_cast<PageId>(20 * slot + page));
        requests.push_back(std::move(held));
    }
    return requests;
}

void go_on(std::vector<Held>& requests) {
    for (Held& held : requests) ++held.position;
}

class StepUpdatesTest : public testing::Test {
  protected:
    // Applies the update of a step; returns its number of words.
    std::size_t run(const std::vector<Held>& requests, bool is_padded = true) {
        const Step step(requests);
        const StepBatch batch = step.batch(is_padded);
        const Result<std::span<const std::int32_t>> update = updates_.make(batch);
        EXPECT_TRUE(update.has_value()) << update.error().message;
        if (!update->empty()) there_.apply(*update, batch.num_padded);
        there_.expect_pages(requests);
        if (is_padded) there_.expect_rows(requests, batch.num_padded);
        return update->size();
    }

    StepUpdates updates_{kNumSlots, kNumPositions, kPageSize};
    There there_{};
};

// The numbers of kernels/KERNELS.md: a word is four bytes.
TEST_F(StepUpdatesTest, BringWhatChangedAlone) {
    std::vector<Held> requests = requests_at(9, {4, 0, 5});
    EXPECT_EQ(run(requests), 4u + 3 * 3 + 3 * (3 + 3)) << "rows, and three pages of each";
    go_on(requests);
    EXPECT_EQ(run(requests), 4u) << "the rows go on";
    go_on(requests);
    EXPECT_EQ(run(requests), 4u);
    go_on(requests);
    EXPECT_EQ(run(requests), 4u + 3 * (3 + 1)) << "a page more of each";
    requests[1].pages[0] = PageId{400};
    go_on(requests);
    EXPECT_EQ(run(requests), 4u + 3 + 1) << "another page of one";
    std::swap(requests[0], requests[2]);
    go_on(requests);
    EXPECT_EQ(run(requests), 4u + 3 * 3) << "the same requests in another order";
    requests.pop_back();
    go_on(requests);
    EXPECT_EQ(run(requests), 4u + 2 * 3) << "one is gone";
}

TEST_F(StepUpdatesTest, StepsThatAreNotPaddedBringPagesAlone) {
    std::vector<Held> requests = requests_at(9, {1, 2});
    EXPECT_EQ(run(requests, /*is_padded=*/false), 4u + 2 * (3 + 3));
    EXPECT_EQ(run(requests, /*is_padded=*/false), 0u) << "nothing changed";
    EXPECT_EQ(run(requests), 4u + 2 * 3);
    go_on(requests);
    EXPECT_EQ(run(requests, /*is_padded=*/false), 0u);
    go_on(requests);
    EXPECT_EQ(run(requests), 4u + 2 * 3) << "the rows there are two positions behind";
}

// Other requests have the tokens and positions with which the last step's rows would continue.
TEST_F(StepUpdatesTest, RowsOfOtherRequestsDoNotGoOn) {
    std::vector<Held> requests = requests_at(9, {4, 0});
    std::vector<Held> others = requests_at(10, {3, 0});
    for (std::vector<Held>* const rows : {&requests, &others}) {
        for (Held& held : *rows) held.token = TokenId{7};
    }
    EXPECT_EQ(run(requests), 4u + 2 * 3 + 2 * (3 + 3));
    EXPECT_EQ(run(others), 4u + 2 * 3 + (3 + 3)) << "rows, and the pages of the one that is new";
}

TEST_F(StepUpdatesTest, FollowAnyOrderOfRequests) {
    std::mt19937 random(7);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<Held> requests = requests_at(3, {0, 1, 2, 3, 4, 5});
    std::size_t num_short = 0;
    for (int i = 0; i < 3000; ++i) {
        for (Held& held : requests) {
            ++held.position;
            // The request has ended, or was retracted: another position, other pages, another
            // token.
            if (held.position < kNumPositions && below(20) != 0) continue;
            held.position = static_cast<std::int32_t>(below(kNumPositions));
            held.token = static_cast<TokenId>(below(1000));
            for (PageId& page : held.pages) {
                if (below(3) != 0) page = static_cast<PageId>(below(kScratchPage));
            }
        }
        // Keeps one row for each place in the KV.
        std::vector<Held> rows;
        std::set<std::int64_t> places;
        for (const Held& held : requests) {
            const auto page = static_cast<std::size_t>(held.position / kPageSize);
            if (places.insert(raw(held.pages[page])).second) rows.push_back(held);
        }
        if (below(8) == 0) std::ranges::shuffle(rows, random);
        if (below(6) == 0) rows.pop_back();
        if (rows.empty()) continue;
        if (run(rows, /*is_padded=*/below(5) != 0) == 4) ++num_short;
        if (HasFailure()) return;
    }
    EXPECT_GT(num_short, 20u);
}

TEST_F(StepUpdatesTest, RowsOfOneRequestMayNotDisagree) {
    std::vector<Held> requests = requests_at(9, {3, 3});
    EXPECT_TRUE(updates_.make(Step(requests).batch(/*is_padded=*/false)).has_value());
    requests[1].pages[1] = PageId{7};
    const auto refused = updates_.make(Step(requests).batch(/*is_padded=*/false));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message, "row 1 (slot 3): page 1 is 7; a row before it has 61");
}

}  // namespace
}  // namespace pitstop::tp_worker
