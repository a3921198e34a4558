// The bundled models against fp32 arithmetic's results (tests/data/models/reference.json, computed
// by another program; its `about` says how).
#include "base/isa.h"
#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace pitstop::tp_worker {
namespace {

const Json& reference() {
    static const Json json = load_json("tests/data/models/reference.json");
    return json["models"];
}

std::unique_ptr<TestReplica> open(
    const std::string& model, Compute compute, int tp, IsaLevel isa = best_isa()
) {
    ReplicaOptions options;
    options.engine.model_dir = model_dir(model);
    options.engine.compute = compute;
    options.engine.isa = isa;
    options.engine.max_total_tokens = 2048;
    options.tp = tp;
    auto replica = TestReplica::make(options);
    EXPECT_TRUE(replica.has_value());
    return *std::move(replica);
}

class Reference : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Reference, Fp32GivesExactlyTheGreedyIds) {
    const auto& [model, tp] = GetParam();
    const auto replica = open(model, Compute::kFp32, tp);
    for (const Json& entry : reference()[model]["greedy"]) {
        SCOPED_TRACE(entry["prompt"].get<std::string>());
        const std::vector<TokenId> expected = ids_of(entry["continuation"]);
        EXPECT_EQ(
            generate(
                replica.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(expected.size())
            ),
            expected
        );
    }
}

TEST_P(Reference, Fp32LogitsAreWithinAThousandth) {
    const auto& [model, tp] = GetParam();
    const auto replica = open(model, Compute::kFp32, tp);
    for (const Json& entry : reference()[model]["logits"]) {
        SCOPED_TRACE(entry["prompt"].get<std::string>());
        const std::vector<TokenId> ids = ids_of(entry["ids"]);
        generate(replica.get(), ids, 1);
        std::vector<std::int32_t> rows;
        for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back(static_cast<std::int32_t>(i));
        const std::vector<float> logits = replica->read_logits(rows);
        const auto V = static_cast<std::size_t>(replica->vocab_len());
        ASSERT_EQ(logits.size(), ids.size() * V);
        for (std::size_t t = 0; t < ids.size(); ++t) {
            const Json& position = entry["positions"][t];
            const std::span row(logits.data() + t * V, V);
            for (std::size_t k = 0; k < 16; ++k) {
                EXPECT_NEAR(row[k], position["first16"][k].get<double>(), 1e-3) << t << " " << k;
            }
            double sum = 0.0;
            for (const float logit : row) sum += std::exp(static_cast<double>(logit) - 30.0);
            EXPECT_NEAR(std::log(sum) + 30.0, position["logsumexp"].get<double>(), 1e-3);
            const auto best = std::max_element(row.begin(), row.end()) - row.begin();
            EXPECT_EQ(best, position["argmax"].get<int>());
        }
    }
}

// Teacher-forced: the reference's own continuation is the context at every step.
void expect_follows(TestReplica* replica, const std::string& model) {
    constexpr double kSureGap = 0.15;
    double worst = 0.0;
    for (const Json& entry : reference()[model]["greedy"]) {
        SCOPED_TRACE(entry["prompt"].get<std::string>());
        std::vector<TokenId> ids = ids_of(entry["ids"]);
        const std::size_t prompt_len = ids.size();
        const std::vector<TokenId> continuation = ids_of(entry["continuation"]);
        ids.insert(ids.end(), continuation.begin(), continuation.end());
        generate(replica, ids, 1);
        std::vector<std::int32_t> rows;
        for (std::size_t i = 0; i < continuation.size(); ++i) {
            rows.push_back(static_cast<std::int32_t>(prompt_len - 1 + i));
        }
        const std::vector<float> logits = replica->read_logits(rows);
        const auto V = static_cast<std::size_t>(replica->vocab_len());
        for (std::size_t i = 0; i < continuation.size(); ++i) {
            const std::span row(logits.data() + i * V, V);
            const auto best = std::max_element(row.begin(), row.end()) - row.begin();
            if (entry["gaps"][i].get<double>() > kSureGap) {
                EXPECT_EQ(best, raw(continuation[i])) << "step " << i;
            }
            double sum = 0.0;
            for (const float logit : row) sum += std::exp(static_cast<double>(logit));
            const double logprob =
                static_cast<double>(row[static_cast<std::size_t>(raw(continuation[i]))]) -
                std::log(sum);
            const double error = std::abs(logprob - entry["logprobs"][i].get<double>());
            EXPECT_LE(error, 0.05) << "step " << i;
            worst = std::max(worst, error);
        }
    }
    std::printf("largest logprob error %.4f\n", worst);
}

TEST_P(Reference, Bf16FollowsWhereTheReferenceIsSure) {
    const auto& [model, tp] = GetParam();
    expect_follows(open(model, Compute::kBf16, tp).get(), model);
}

TEST(ReferenceOnEveryIsa, Bf16FollowsWhereTheReferenceIsSure) {
    for (const IsaLevel isa :
         {IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
        if (isa > best_isa()) break;
        SCOPED_TRACE(name_of(isa));
        expect_follows(open("bard", Compute::kBf16, 1, isa).get(), "bard");
        expect_follows(open("bard-hybrid", Compute::kBf16, 1, isa).get(), "bard-hybrid");
    }
}

// The truth mode does not depend on the processor: every instruction set gives the same ids.
TEST(ReferenceOnEveryIsa, Fp32GivesExactlyTheGreedyIds) {
    for (const IsaLevel isa :
         {IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
        if (isa > best_isa()) break;
        SCOPED_TRACE(name_of(isa));
        for (const std::string model : {"stories", "stories-hybrid"}) {
            const auto replica = open(model, Compute::kFp32, 1, isa);
            for (const Json& entry : reference()[model]["greedy"]) {
                const std::vector<TokenId> expected = ids_of(entry["continuation"]);
                const auto num = static_cast<std::int64_t>(expected.size());
                EXPECT_EQ(generate(replica.get(), ids_of(entry["ids"]), num), expected) << model;
            }
        }
    }
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<std::string, int>>& suite) {
    std::string name = std::get<0>(suite.param) + "Tp" + std::to_string(std::get<1>(suite.param));
    std::erase(name, '-');
    return name;
}

INSTANTIATE_TEST_SUITE_P(
    BundledModels,
    Reference,
    testing::Combine(testing::Values("stories", "bard"), testing::Values(1, 2, 4)),
    name_of_case
);
INSTANTIATE_TEST_SUITE_P(
    BundledHybrids,
    Reference,
    testing::Combine(testing::Values("stories-hybrid", "bard-hybrid"), testing::Values(1, 2)),
    name_of_case
);

}  // namespace
}  // namespace pitstop::tp_worker
