// Rows and pages that stay on the device and are updated there, as the reference does it.
#include "kernels/step_rows.h"
#include "tests/kernels/cuda_support.h"

#include <random>
#include <vector>

namespace pitstop::kernels {
namespace {

constexpr std::int32_t kNumSlots = 40;
constexpr std::int32_t kSlotPages = 700;
constexpr std::int32_t kPageSize = 3;
constexpr std::int32_t kRows = 48;

// The kernel's arrays, on the host or on the device.
template <template <class> class Array>
struct Kept {
    Array<TokenId> tokens;
    Array<std::int32_t> positions;
    Array<std::int64_t> kv_slots;
    Array<std::int32_t> kv_lens;
    Array<std::int32_t> page_starts;
    Array<PageId> tables;
};
template <class T>
using HostArray = std::vector<T>;

template <template <class> class Array>
StepRowsArgs args_of(Kept<Array>& kept) {
    return {
        .page_size = kPageSize,
        .slot_pages = kSlotPages,
        .num_slots = kNumSlots,
        .scratch_page = 30000,
        .tokens = kept.tokens.data(),
        .positions = kept.positions.data(),
        .kv_slots = kept.kv_slots.data(),
        .kv_lens = kept.kv_lens.data(),
        .page_starts = kept.page_starts.data(),
        .tables = kept.tables.data()};
}

// An update of `num_runs` runs of up to `length_max` pages, each for another slot. The runs cover
// all positions that rows may have.
std::vector<std::int32_t> update_of(
    std::int32_t num_rows, bool is_given, std::int32_t num_runs, std::int32_t length_max
) {
    static std::mt19937 random(3);
    const auto below = [](std::int32_t n) {
        return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(n));
    };
    StepUpdate update{
        .num_rows = num_rows, .num_given = is_given ? num_rows : 0, .num_runs = num_runs};
    std::vector<std::int32_t> rows;
    std::vector<std::int32_t> runs;
    std::vector<std::int32_t> pages;
    for (std::int32_t r = 0; r < update.num_given; ++r) rows.push_back(below(1000) - 100);
    for (std::int32_t r = 0; r < update.num_given; ++r)
        rows.push_back(below(kPageSize * kSlotPages - 9));
    for (std::int32_t r = 0; r < update.num_given; ++r) rows.push_back(below(kNumSlots));
    for (std::int32_t run = 0; run < num_runs; ++run) {
        const std::int32_t length = 1 + below(length_max);
        const std::int32_t at = run * kSlotPages + below(kSlotPages - length + 1);
        runs.insert(runs.end(), {at, length, static_cast<std::int32_t>(pages.size())});
        for (std::int32_t i = 0; i < length; ++i) pages.push_back(below(30000));
    }
    update.num_pages = static_cast<std::int32_t>(pages.size());
    std::vector<std::int32_t> words{
        update.num_rows, update.num_given, update.num_runs, update.num_pages};
    for (const auto& part : {rows, runs, pages})
        words.insert(words.end(), part.begin(), part.end());
    EXPECT_EQ(std::ssize(words), update.num_words());
    return words;
}

class CudaStepRows : public test::OnCuda {};

TEST_F(CudaStepRows, KeepWhatTheReferenceKeeps) {
    constexpr std::size_t kEntries = kNumSlots * kSlotPages + 6;
    Kept<HostArray> host{
        .tokens = HostArray<TokenId>(kRows, TokenId{-7}),
        .positions = HostArray<std::int32_t>(kRows, 0),
        .kv_slots = HostArray<std::int64_t>(kRows, -7),
        .kv_lens = HostArray<std::int32_t>(kRows, -7),
        .page_starts = HostArray<std::int32_t>(kRows, 0),
        .tables = HostArray<PageId>(kEntries, PageId{9})};
    Kept<test::PlacedArray> there{
        .tokens = {host.tokens, place()},
        .positions = {host.positions, place()},
        .kv_slots = {HostArray<std::int64_t>(kRows, -8), place()},
        .kv_lens = {HostArray<std::int32_t>(kRows, -8), place()},
        .page_starts = {host.page_starts, place()},
        .tables = {host.tables, place()}};
    const auto run = [&](std::int32_t num_padded, const std::vector<std::int32_t>& words) {
        SCOPED_TRACE(testing::Message() << words[0] << " of " << num_padded << " rows");
        StepRowsArgs on_host = args_of(host);
        StepRowsArgs on_device = args_of(there);
        const test::PlacedArray<std::int32_t> device_words{words, place()};
        on_host.update = words.data();
        on_device.update = device_words.data();
        on_host.num_rows = on_device.num_rows = num_padded;
        on_device.stream = stream();
        step_rows_ref(on_host);
        step_rows_cuda(on_device);
        EXPECT_EQ(there.tables.fetch(), host.tables);
        const auto expect_same = [&](const auto& placed, const auto& expected) {
            const auto actual = placed.fetch();
            for (std::size_t r = 0; r < static_cast<std::size_t>(num_padded); ++r)
                EXPECT_EQ(actual[r], expected[r]) << "row " << r;
        };
        expect_same(there.tokens, host.tokens);
        expect_same(there.positions, host.positions);
        expect_same(there.kv_slots, host.kv_slots);
        expect_same(there.kv_lens, host.kv_lens);
        expect_same(there.page_starts, host.page_starts);
    };
    run(/*num_padded=*/0, update_of(0, /*is_given=*/false, kNumSlots, kSlotPages));
    for (const std::int32_t num_rows : {1, 5, 33, 48}) {
        const std::int32_t num_padded = num_rows == 5 ? 8 : num_rows == 33 ? 48 : num_rows;
        run(num_padded, update_of(num_rows, /*is_given=*/true, 0, 1));
        run(num_padded, update_of(num_rows, /*is_given=*/false, 0, 1));
        // A row may write to a page that comes with the same step.
        for (int i = 0; i < 3; ++i)
            run(num_padded, update_of(num_rows, /*is_given=*/false, kNumSlots, kSlotPages));
        run(num_padded, update_of(num_rows, /*is_given=*/true, 3, 1));
    }
}

}  // namespace
}  // namespace pitstop::kernels
