#include "tp_worker/model/engine.h"

#include "base/isa.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace pitstop::tp_worker {
namespace {

EngineOptions options_for(const std::string& directory) {
    EngineOptions options;
    options.model_dir = directory;
    options.isa = best_isa();
    options.page_size = 8;
    options.max_total_tokens = 256;
    options.num_slots = 4;
    options.tokens_per_step_max = 128;
    return options;
}

Error load_error(const EngineOptions& options) {
    kernels::ThreadPool threads(1);
    const auto communicator = make_solo_communicator();
    const auto engine = Engine::load(options, threads, *communicator);
    return engine ? Error{ErrorCode::kInternal, "loaded"} : engine.error();
}

// A copy of the bundled model, to be damaged.
class BadModelDirectory : public testing::Test {
  protected:
    void SetUp() override { dir_.copy_from(model_dir("stories")); }
    void expect_error(ErrorCode code, std::string_view part) const {
        const Error error = load_error(options_for(dir_.path()));
        EXPECT_EQ(error.code, code) << error.message;
        EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
    }
    void edit_config(const std::string& key, const Json& value) const {
        Json config = parse_json(dir_.read("config.json"));
        config[key] = value;
        dir_.write("config.json", text_of(config));
    }
    test::TempDir dir_{};
};

TEST_F(BadModelDirectory, WithoutConfigIsNamed) {
    dir_.remove("config.json");
    expect_error(ErrorCode::kNotFound, "config.json");
}

TEST_F(BadModelDirectory, WithACorruptConfig) {
    dir_.write("config.json", "{\"architectures\": [");
    expect_error(ErrorCode::kMalformed, "not JSON");
}

TEST_F(BadModelDirectory, WithATruncatedFile) {
    dir_.truncate("model.safetensors", 1'000'000);
    expect_error(ErrorCode::kDataLoss, "model.safetensors");
}

TEST_F(BadModelDirectory, WithAHeaderThatPointsOutsideTheFile) {
    std::string file = dir_.read("model.safetensors");
    const std::string from = "[2887424,2887680]";
    const std::size_t at = file.find(from);
    ASSERT_NE(at, std::string::npos);
    file.replace(at, from.size(), "[9887424,9887680]");
    dir_.write("model.safetensors", file);
    expect_error(ErrorCode::kMalformed, "model.norm.weight");
}

TEST_F(BadModelDirectory, WithoutAShard) {
    std::filesystem::rename(dir_.path("model.safetensors"), dir_.path("model-1.safetensors"));
    Json map;
    map["weight_map"]["model.norm.weight"] = "model-1.safetensors";
    map["weight_map"]["lm_head.weight"] = "model-2.safetensors";
    dir_.write("model.safetensors.index.json", map.dump());
    expect_error(ErrorCode::kNotFound, "model-2.safetensors");
}

TEST_F(BadModelDirectory, WithShapesThatDisagreeWithTheConfigListsTheFirstAndCountsTheRest) {
    edit_config("intermediate_size", 388);
    const Error error = load_error(options_for(dir_.path()));
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    for (int i = 0; i < 8; ++i) {  // by name: three of each layer
        const std::string part =
            std::array<std::string, 3>{"down", "gate", "up"}[static_cast<std::size_t>(i % 3)];
        const std::string name = fmt::format("model.layers.{}.mlp.{}_proj.weight", i / 3, part);
        EXPECT_NE(error.message.find(name), std::string::npos) << name;
    }
    EXPECT_NE(error.message.find("18 problem(s)"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("and 10 more"), std::string::npos) << error.message;
}

TEST_F(BadModelDirectory, WithMissingAndWithExtraLayers) {
    edit_config("num_hidden_layers", 7);
    expect_error(ErrorCode::kInvalidArgument, "'model.layers.6.mlp.up_proj.weight' is missing");
    edit_config("num_hidden_layers", 5);
    expect_error(
        ErrorCode::kInvalidArgument,
        "'model.layers.5.mlp.up_proj.weight' is no tensor of this model"
    );
}

TEST(EngineOptions, OutOfRangeAreRefusedNamingWhatIsAccepted) {
    const auto expect_refused = [](void (*change)(EngineOptions&), std::string_view part) {
        EngineOptions options = options_for(model_dir("stories"));
        change(options);
        const Error error = load_error(options);
        EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.message;
        EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
    };
    expect_refused([](EngineOptions& o) { o.page_size = 0; }, "page size 0");
    expect_refused([](EngineOptions& o) { o.page_size = 1 << 20; }, "page size");
    expect_refused([](EngineOptions& o) { o.num_slots = 0; }, "requests at once");
    expect_refused([](EngineOptions& o) { o.num_slots = 1 << 20; }, "requests at once");
    expect_refused([](EngineOptions& o) { o.max_total_tokens = 7; }, "tokens of KV");
    expect_refused([](EngineOptions& o) { o.tokens_per_step_max = 0; }, "tokens per step");
    expect_refused([](EngineOptions& o) { o.context_len = 4096; }, "the model has 1024");
}

TEST(EngineOptions, AContextLongerThanTheKvIsCutToIt) {
    kernels::ThreadPool threads(1);
    const auto communicator = make_solo_communicator();
    const auto engine = Engine::load(options_for(model_dir("stories")), threads, *communicator);
    ASSERT_TRUE(engine.has_value());
    const messages::WorkerHello hello = (*engine)->describe();
    EXPECT_EQ(messages::invalid(hello), std::nullopt);
    EXPECT_EQ(hello.num_pages, 32);
    EXPECT_EQ(hello.context_len, 256);
    EXPECT_EQ(hello.vocab_size, 2048);
    EXPECT_EQ(hello.digests.size(), 68u);
}

// A worker refuses a plan that exceeds its own limits, which the scheduler cannot know.
class Plans : public testing::TestWithParam<LoadFormat> {
  protected:
    void SetUp() override {
        EngineOptions options = options_for(model_dir("stories"));
        options.load_format = GetParam();
        auto engine = Engine::load(options, threads_, *communicator_);
        ASSERT_TRUE(engine.has_value()) << engine.error().message;
        engine_ = *std::move(engine);
        messages::RequestSetup setup;
        setup.prompt_len = 3;
        setup.sampling.temperature = 0;
        good_.epoch = engine_->epoch();
        good_.setups = {setup};
        good_.rows = {{.num_new = 3, .num_pages = 1, .output_index = 0}};
        good_.tokens.values = {TokenId{1}, TokenId{2}, TokenId{3}};
        good_.pages.values = {PageId{5}};
    }
    void expect_refused(void (*change)(messages::StepPlan&), std::string_view part) {
        messages::StepPlan plan = good_;
        change(plan);
        EXPECT_EQ(messages::invalid(plan), std::nullopt);  // only this worker knows the limit
        const Result<messages::StepResult> result = engine_->run(plan);
        ASSERT_FALSE(result.has_value()) << part;
        EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    }
    kernels::ThreadPool threads_{1};
    std::unique_ptr<Communicator> communicator_ = make_solo_communicator();
    std::unique_ptr<Engine> engine_{};
    messages::StepPlan good_{};
};

TEST_P(Plans, ThatNameACheckpointOfAModelWithoutStateAreRefused) {
    expect_refused(
        [](messages::StepPlan& p) {
            p.rows[0].save_to = messages::CheckpointId{0};
            p.rows[0].save_at = 3;
        },
        "no such checkpoint: 0"
    );
    expect_refused(
        [](messages::StepPlan& p) {
            p.rows[0].begin = 2;
            p.rows[0].num_new = 1;
            p.tokens.values.resize(1);
            p.rows[0].state_from = messages::CheckpointId{5};
        },
        "no such checkpoint: 5"
    );
}

TEST_P(Plans, OutOfRangeAreRefusedNamingWhat) {
    expect_refused([](messages::StepPlan& p) { p.epoch = Epoch{9}; }, "epoch 9");
    expect_refused([](messages::StepPlan& p) { p.rows[0].slot = SlotId{3}; }, "slot 3");
    expect_refused([](messages::StepPlan& p) { p.rows[0].slot = SlotId{4}; }, "slot 4");
    expect_refused([](messages::StepPlan& p) { p.setups[0].slot = SlotId{4}; }, "slot 4");
    expect_refused(
        [](messages::StepPlan& p) {
            p.rows.push_back({.begin = 3, .num_new = 1, .num_pages = 1, .output_index = 1});
            p.tokens.values.push_back(TokenId{4});
            p.pages.values.push_back(PageId{5});
        },
        "row 1 (slot 0): another row samples for the same request"
    );
    expect_refused([](messages::StepPlan& p) { p.setups[0].slot = SlotId{-1}; }, "slot -1");
    expect_refused(
        [](messages::StepPlan& p) { p.pages.values[0] = PageId{32}; }, "no such page: 32"
    );
    expect_refused(
        [](messages::StepPlan& p) { p.pages.values[0] = PageId{-1}; }, "no such page: -1"
    );
    expect_refused(
        [](messages::StepPlan& p) { p.tokens.values[1] = TokenId{2048}; }, "no such token: 2048"
    );
    expect_refused(
        [](messages::StepPlan& p) { p.tokens.values[1] = TokenId{-1}; }, "no such token: -1"
    );
    expect_refused([](messages::StepPlan& p) { p.rows[0].begin = 6; }, "too few pages");
    expect_refused([](messages::StepPlan& p) { p.rows[0].begin = 254; }, "positions");
    expect_refused([](messages::StepPlan& p) { p.rows[0].begin = (1LL << 31) - 4; }, "positions");
    expect_refused([](messages::StepPlan& p) { p.rows[0].output_index = 256; }, "outputs");
    expect_refused([](messages::StepPlan& p) { p.setups[0].stop_ids = {TokenId{5000}}; }, "5000");
    expect_refused([](messages::StepPlan& p) { p.setups[0].history = {TokenId{-3}}; }, "-3");
    expect_refused(
        [](messages::StepPlan& p) { p.setups[0].logprobs.ids = {TokenId{2048}}; }, "2048"
    );
    expect_refused(
        [](messages::StepPlan& p) {
            p.setups[0].sampling.logit_bias = {{2048, 1.0}};
        },
        "logit_bias"
    );
    expect_refused([](messages::StepPlan& p) { p.setups[0].logprobs.top = 100'000; }, "top");
    expect_refused(
        [](messages::StepPlan& p) {
            p.rows[0].num_scored = 1;
            p.targets.values = {TokenId{2048}};
        },
        "no such target"
    );
    expect_refused(
        [](messages::StepPlan& p) {
            p.rows[0].num_new = 129;
            p.rows[0].num_pages = 17;
            p.tokens.values.resize(129);
            p.pages.values.resize(17);
        },
        "129 tokens"
    );
    EXPECT_TRUE(engine_->run(good_).has_value());  // the refused plans left no trace
}

TEST_P(Plans, ResultsHaveOneEntryPerRowThatSamples) {
    messages::StepPlan plan = good_;
    plan.rows[0].output_index.reset();
    const Result<messages::StepResult> silent = engine_->run(plan);
    ASSERT_TRUE(silent.has_value());
    EXPECT_TRUE(silent->sampled.values.empty() && silent->logprobs.values.empty());
    const Result<messages::StepResult> result = engine_->run(good_);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->sampled.values.size(), 1u);
    EXPECT_GE(result->elapsed_us, 0);
}

INSTANTIATE_TEST_SUITE_P(
    LoadFormats,
    Plans,
    testing::Values(LoadFormat::kAuto, LoadFormat::kNull),
    [](const auto& suite) { return suite.param == LoadFormat::kAuto ? "Model" : "Null"; }
);

// When steps overlap, the next plan names no token; the worker uses the token that it sampled.
TEST(Engine, ARowThatTakesWhatWasSampledIsTheRowThatNamesIt) {
    ReplicaOptions options{.engine = options_for(model_dir("stories")), .tp = 2};
    const auto replica = TestReplica::make(options);
    ASSERT_TRUE(replica.has_value());
    const std::vector<TokenId> prompt{TokenId{740}, TokenId{543}, TokenId{258}, TokenId{498}};
    const std::vector<TokenId> expected = generate(replica->get(), prompt, 20);

    messages::StepPlan plan;
    messages::RequestSetup setup;
    setup.slot = SlotId{2};
    setup.prompt_len = 4;
    setup.sampling.temperature = 0;
    plan.setups = {setup};
    plan.rows = {{.slot = SlotId{2}, .num_new = 4, .num_pages = 3, .output_index = 0}};
    plan.tokens.values = prompt;
    plan.pages.values = {PageId{9}, PageId{3}, PageId{30}};
    std::vector<TokenId> sampled;
    for (std::int64_t i = 0; i < 20; ++i) {
        sampled.push_back((*replica)->run(plan).sampled.values.at(0));
        plan.setups.clear();
        plan.tokens.values = {TokenId{0}};
        plan.rows[0] = {
            .slot = SlotId{2},
            .begin = 4 + i,
            .num_new = 1,
            .num_pages = 3,
            .output_index = i + 1,
            .takes_sampled = true};
    }
    EXPECT_EQ(sampled, expected);
}

TEST(NullModel, IsUniformAndNeverEndsARequest) {
    EngineOptions options = options_for(model_dir("stories"));
    options.load_format = LoadFormat::kNull;
    kernels::ThreadPool threads(1);
    const auto communicator = make_solo_communicator();
    const auto engine = Engine::load(options, threads, *communicator);
    ASSERT_TRUE(engine.has_value());
    messages::StepPlan plan;
    plan.epoch = (*engine)->epoch();
    messages::RequestSetup setup;
    setup.prompt_len = 7;
    setup.logprobs.enabled = true;
    setup.logprobs.top = 2;
    setup.stop_ids = {TokenId{7}, TokenId{8}, TokenId{10}};
    plan.setups = {setup};
    plan.rows = {{.num_new = 1, .num_pages = 1, .output_index = 0}};
    plan.tokens.values = {TokenId{0}};
    plan.pages.values = {PageId{0}};
    const Result<messages::StepResult> result = (*engine)->run(plan);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->sampled.values, (std::vector<TokenId>{TokenId{9}}));
    EXPECT_FLOAT_EQ(result->logprobs.values[0], -std::log(2048.f));
    EXPECT_EQ(result->top_ids.values.size(), 2u);
}

}  // namespace
}  // namespace pitstop::tp_worker
