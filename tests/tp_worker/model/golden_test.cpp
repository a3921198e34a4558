// Every family and odd shapes against Hugging Face transformers in fp32
// (tests/golden/make_golden.py made tests/data/golden and says how).
#include "base/isa.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace pitstop::tp_worker {
namespace {

std::vector<std::string> golden_names() {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(source_dir() + "/tests/data/golden")) {
        if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string golden_dir(const std::string& name) {
    return source_dir() + "/tests/data/golden/" + name;
}

// Both sides round in fp32: some 1e3 roundings of 6e-8 on logits of about 10, and golden.json keeps
// five decimals.
constexpr double kLogitError = 1e-4;

class Golden : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Golden, Fp32GivesTheLogitsAndGreedyIdsOfTransformers) {
    const auto& [name, tp] = GetParam();
    ReplicaOptions options;
    options.engine.model_dir = golden_dir(name);
    options.engine.compute = Compute::kFp32;
    options.engine.isa = best_isa();
    options.engine.page_size = 5;
    options.engine.max_total_tokens = 200;
    options.tp = tp;
    auto replica = TestReplica::make(options);
    if (!replica && replica.error().code == ErrorCode::kUnsupported) {
        GTEST_SKIP() << replica.error().message;
    }
    ASSERT_TRUE(replica.has_value()) << replica.error().message;

    const Json golden = load_json(golden_dir(name) + "/golden.json");
    const auto V = static_cast<std::size_t>((*replica)->vocab_len());
    double worst = 0.0;
    for (const Json& prompt : golden["prompts"]) {
        const std::vector<TokenId> ids = ids_of(prompt["ids"]);
        const std::vector<TokenId> expected = ids_of(prompt["greedy"]);
        EXPECT_EQ(
            generate(replica->get(), ids, static_cast<std::int64_t>(expected.size())), expected
        );
        generate(replica->get(), ids, 1);
        std::vector<std::int32_t> rows;
        for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back(static_cast<std::int32_t>(i));
        const std::vector<float> logits = (*replica)->read_logits(rows);
        for (std::size_t t = 0; t < ids.size(); ++t) {
            const Json& row = prompt["logits"][t];
            const std::size_t step = row.size() == V ? 1 : 8;  // as make_golden.py thins them
            ASSERT_EQ(row.size(), (V + step - 1) / step);
            for (std::size_t k = 0; k < row.size(); ++k) {
                const double error =
                    std::abs(static_cast<double>(logits[t * V + k * step]) - row[k].get<double>());
                worst = std::max(worst, error);
                EXPECT_LE(error, kLogitError) << "position " << t << " id " << k * step;
            }
        }
    }
    std::printf("largest logit error %.6f\n", worst);
}

INSTANTIATE_TEST_SUITE_P(
    Transformers,
    Golden,
    testing::Combine(testing::ValuesIn(golden_names()), testing::Values(1, 2, 4)),
    [](const auto& suite) {
        return std::get<0>(suite.param) + "_tp" + std::to_string(std::get<1>(suite.param));
    }
);

}  // namespace
}  // namespace pitstop::tp_worker
