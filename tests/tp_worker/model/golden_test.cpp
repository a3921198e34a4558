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

// Ranks, and groups of ranks over which experts are divided.
struct Ranks {
    int tp = 1;
    int ep = 1;
};

std::string suite_name(const testing::TestParamInfo<std::tuple<std::string, Ranks>>& suite) {
    const auto& [name, ranks] = suite.param;
    const std::string ep = ranks.ep == 1 ? "" : "_ep" + std::to_string(ranks.ep);
    return name + "_tp" + std::to_string(ranks.tp) + ep;
}

class Golden : public testing::TestWithParam<std::tuple<std::string, Ranks>> {};

TEST_P(Golden, Fp32GivesTheLogitsAndGreedyIdsOfTransformers) {
    const auto& [name, ranks] = GetParam();
    ReplicaOptions options;
    options.engine.model_dir = golden_dir(name);
    options.engine.compute = Compute::kFp32;
    options.engine.isa = best_isa();
    options.engine.page_size = 5;
    options.engine.max_total_tokens = 200;
    options.tp = ranks.tp;
    options.engine.ep = ranks.ep;
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

// The models with experts: those with a routes.json of make_routes.py.
std::vector<std::string> routed_names() {
    std::vector<std::string> names = golden_names();
    std::erase_if(names, [](const std::string& name) {
        return !std::filesystem::exists(golden_dir(name) + "/routes.json");
    });
    return names;
}

// Runs the prompt in chunks, and returns the routes of all its tokens.
std::vector<std::uint8_t> routes_of(
    TestReplica* replica, const std::vector<TokenId>& prompt, std::int64_t chunk
) {
    TestRequest request{
        .tokens = prompt,
        .prompt_len = std::ssize(prompt),
        .sampling = greedy(),
    };
    for (std::int32_t i = 0; i < 20; ++i) request.pages.push_back(PageId{i});
    std::vector<std::uint8_t> routes;
    while (request.num_done < std::ssize(prompt)) {
        messages::StepPlan plan;
        const std::int64_t num = std::min(chunk, std::ssize(prompt) - request.num_done);
        add_row(&request, num, &plan);
        plan.rows.back().num_routed = num;
        const messages::StepResult result = replica->run(std::move(plan));
        routes.insert(routes.end(), result.routes.values.begin(), result.routes.values.end());
    }
    return routes;
}

class GoldenRoutes : public testing::TestWithParam<std::tuple<std::string, Ranks>> {};

TEST_P(GoldenRoutes, AreThoseThatTransformersChooses) {
    const auto& [name, ranks] = GetParam();
    ReplicaOptions options;
    options.engine.model_dir = golden_dir(name);
    options.engine.compute = Compute::kFp32;
    options.engine.isa = best_isa();
    options.engine.page_size = 5;
    options.engine.max_total_tokens = 200;
    options.tp = ranks.tp;
    options.engine.ep = ranks.ep;
    auto replica = TestReplica::make(options);
    if (!replica && replica.error().code == ErrorCode::kUnsupported) {
        GTEST_SKIP() << replica.error().message;
    }
    ASSERT_TRUE(replica.has_value()) << replica.error().message;
    const messages::RouteShape shape = (*replica)->root().routes().value();
    ASSERT_EQ(shape.id_bytes(), 1);
    const Json golden = load_json(golden_dir(name) + "/routes.json");
    std::int64_t num_compared = 0;
    std::int64_t num_close = 0;
    for (const Json& prompt : golden["prompts"]) {
        const std::vector<TokenId> ids = ids_of(prompt["ids"]);
        for (const std::int64_t chunk : {std::ssize(ids), std::int64_t{3}}) {
            const std::vector<std::uint8_t> routes = routes_of(replica->get(), ids, chunk);
            ASSERT_EQ(std::ssize(routes), std::ssize(ids) * shape.row_bytes());
            for (std::size_t t = 0; t < ids.size(); ++t) {
                for (std::size_t l = 0; l < static_cast<std::size_t>(shape.layers); ++l) {
                    const Json& expected = prompt["routes"][t][l];
                    const auto k = static_cast<std::size_t>(shape.per_token);
                    ASSERT_EQ(expected.size(), k);
                    ++num_compared;
                    // Both choices are right if logits differ by less than their error.
                    if (prompt["gaps"][t][l].get<double>() <= 2 * kLogitError) {
                        ++num_close;
                        continue;
                    }
                    const auto first = (t * static_cast<std::size_t>(shape.layers) + l) * k;
                    for (std::size_t j = 0; j < k; ++j) {
                        EXPECT_EQ(routes[first + j], expected[j].get<int>())
                            << "token " << t << " layer " << l << " choice " << j;
                    }
                }
            }
        }
    }
    EXPECT_LE(num_close * 50, num_compared) << "too little is compared";
}

INSTANTIATE_TEST_SUITE_P(
    Transformers,
    GoldenRoutes,
    testing::Combine(
        testing::ValuesIn(routed_names()),
        testing::Values(Ranks{1}, Ranks{2}, Ranks{.tp = 2, .ep = 2})
    ),
    suite_name
);

INSTANTIATE_TEST_SUITE_P(
    Transformers,
    Golden,
    testing::Combine(
        testing::ValuesIn(golden_names()), testing::Values(Ranks{1}, Ranks{2}, Ranks{4})
    ),
    suite_name
);

INSTANTIATE_TEST_SUITE_P(
    TransformersWithGroups,
    Golden,
    testing::Combine(
        testing::ValuesIn(routed_names()),
        testing::Values(Ranks{.tp = 2, .ep = 2}, Ranks{.tp = 4, .ep = 2}, Ranks{.tp = 4, .ep = 4})
    ),
    suite_name
);

}  // namespace
}  // namespace pitstop::tp_worker
