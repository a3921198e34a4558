// Words that stay on the device and are updated there, as the reference does it.
#include "kernels/word_runs.h"
#include "tests/kernels/cuda_support.h"

#include <numeric>
#include <random>
#include <vector>

namespace pitstop::kernels {
namespace {

class CudaWordRuns : public test::OnCuda {};

TEST_F(CudaWordRuns, WriteWhatTheReferenceWrites) {
    constexpr std::int32_t kWords = 30000;
    constexpr std::int32_t kLengthMax = 70;  // a lane then has more than two words
    std::mt19937 random(5);
    const auto below = [&](std::int32_t n) {
        return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(n));
    };
    std::vector<std::int32_t> expected(kWords);
    std::iota(expected.begin(), expected.end(), -9);
    const test::PlacedArray<std::int32_t> there{expected, place()};
    for (const std::int32_t num_runs : {0, 1, 7, 8, 9, 300}) {
        SCOPED_TRACE(testing::Message() << num_runs << " runs");
        std::vector<std::int32_t> runs;
        std::vector<std::int32_t> values;
        for (std::int32_t run = 0; run < num_runs; ++run) {
            const std::int32_t length = 1 + below(kLengthMax);
            const std::int32_t at = run * (kWords / num_runs) + below(kWords / num_runs - length);
            runs.insert(runs.end(), {at, length, static_cast<std::int32_t>(values.size())});
            for (std::int32_t i = 0; i < length; ++i)
                values.push_back(static_cast<std::int32_t>(random()));
        }
        std::vector<std::int32_t> update{num_runs, static_cast<std::int32_t>(values.size())};
        update.insert(update.end(), runs.begin(), runs.end());
        update.insert(update.end(), values.begin(), values.end());
        ASSERT_EQ(std::ssize(update), WordUpdate::read(update.data()).num_words());
        const test::PlacedArray<std::int32_t> device_update{update, place()};
        word_runs_ref({.update = update.data(), .words = expected.data()});
        word_runs_cuda({.update = device_update.data(), .words = there.data(), .stream = stream()});
        EXPECT_EQ(there.fetch(), expected);
    }
}

}  // namespace
}  // namespace pitstop::kernels
