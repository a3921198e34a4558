// Tensors that arrive by their rows: which rows may come next, and which jobs they become.
#include "tp_worker/weights/row_tensors.h"

#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Use = RowTensors::Use;

class RowTensorsTest : public testing::Test {
  protected:
    RowTensorsTest() {
        const auto config = ModelConfig::read(source_dir() + "/tests/data/golden/mixtral");
        layout = *layout_of(*config, Rank{0}, 1);
        tensor = &layout.tensors()[0];
    }

    void begin(const std::string& name, Use use = Use::kFilled) {
        rows.begin(name, 0, *tensor, use);
    }
    Result<FillJob> add(const std::string& name, std::int64_t begin, std::int64_t num) {
        return rows.add({.spec = {.name = name}, .rows = TensorRows{begin, num}});
    }

    WeightLayout layout{};
    const WeightTensor* tensor = nullptr;
    RowTensors rows{};
};

TEST_F(RowTensorsTest, EachRowComesOnceAndInOrder) {
    const std::int64_t num = tensor->whole_rows;
    begin("w");
    EXPECT_FALSE(add("w", 1, 1)) << "row 0 is missing";
    EXPECT_FALSE(add("v", 0, 1)) << "another tensor has begun";
    EXPECT_FALSE(add("w", 0, num + 1)) << "more rows than it has";
    EXPECT_FALSE(add("w", 0, 0));
    const Result<FillJob> first = add("w", 0, num - 1);
    ASSERT_TRUE(first);
    EXPECT_FALSE(first->is_last);
    EXPECT_TRUE(rows.is_incomplete());
    EXPECT_EQ(
        rows.what_is_missing(), fmt::format("'w' has arrived up to row {} of {}", num - 1, num)
    );
    const Result<FillJob> again = add("w", 0, 1);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().message, "'w': 1 rows from row 0 on arrived out of order");
    const Result<FillJob> last = add("w", num - 1, 1);
    ASSERT_TRUE(last);
    EXPECT_TRUE(last->is_last);
    EXPECT_FALSE(rows.is_incomplete());
    EXPECT_FALSE(add("w", num, 1));
}

TEST_F(RowTensorsTest, ACallForgetsWhatTheLastOneCompleted) {
    begin("w");
    ASSERT_TRUE(add("w", 0, 1));
    rows.begin_call();
    EXPECT_TRUE(rows.is_incomplete());
    ASSERT_TRUE(rows.problem_of_whole(0));
    EXPECT_NE(rows.problem_of_whole(0)->find("up to row 1 of"), std::string::npos);
    EXPECT_FALSE(rows.problem_of_whole(1));
    ASSERT_TRUE(add("w", 1, tensor->whole_rows - 1));
    ASSERT_TRUE(rows.problem_of_whole(0));
    EXPECT_EQ(*rows.problem_of_whole(0), "'w' was sent both whole and by its rows");
    rows.begin_call();
    EXPECT_FALSE(rows.problem_of_whole(0));
}

TEST_F(RowTensorsTest, OfTiedTensorsTheSecondIsOnlyDigested) {
    begin("head", Use::kCompared);
    const Result<FillJob> job = add("head", 0, tensor->whole_rows);
    ASSERT_TRUE(job);
    EXPECT_TRUE(job->is_only_digested);
    EXPECT_EQ(job->parts.size(), tensor->parts.size());
    begin("next");
    ASSERT_TRUE(add("next", 0, 1));
    std::vector<std::string> complete;
    rows.for_each_complete([&](const std::string& name,
                               std::size_t,
                               const std::vector<messages::PartDigest>* compared) {
        complete.push_back(name);
        EXPECT_NE(compared, nullptr);
    });
    EXPECT_EQ(complete, std::vector<std::string>{"head"});
}

}  // namespace
}  // namespace pitstop::tp_worker
