// Rotary settings and frequencies, compared with Hugging Face transformers
// (tests/golden/make_rope.py made tests/data/golden/rope.json and explains how).
#include "tp_worker/config/rope_config.h"

#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

struct Parsed {
    RopeConfig rope{};
    std::int64_t max_positions = 0;
    ConfigProblems problems{};
    std::vector<std::string> notes{};
};

Parsed parse(const Json& config) {
    Parsed parsed;
    parsed.max_positions = config.value("max_position_embeddings", std::int64_t{512});
    ConfigReader reader(config, "", &parsed.problems);
    parsed.rope = read_rope(reader, parsed.max_positions, &parsed.problems, &parsed.notes);
    return parsed;
}

TEST(RopeConfig, FrequenciesAreThoseOfTransformersBitForBit) {
    const Json golden = Json::parse(std::ifstream(source_dir() + "/tests/data/golden/rope.json"));
    ASSERT_GE(golden["cases"].size(), 50u);
    for (const Json& expected : golden["cases"]) {
        const Parsed parsed = parse(expected["config"]);
        ASSERT_EQ(parsed.problems.list, std::vector<std::string>{}) << expected["config"];
        std::vector<std::uint32_t> bits;
        for (const float frequency : rope_frequencies(parsed.rope, expected["head_dim"]))
            bits.push_back(std::bit_cast<std::uint32_t>(frequency));
        EXPECT_EQ(bits, expected["inv_freq_bits"].get<std::vector<std::uint32_t>>())
            << expected["config"] << " head_dim " << expected["head_dim"];
        EXPECT_EQ(parsed.rope.attention_factor, expected["attention_scaling"].get<double>())
            << expected["config"];
    }
}

// The scaled context is vLLM's result, and at least as long as the unscaled context.
TEST(RopeConfig, ScalingOfPositionsMakesTheContextLonger) {
    const auto context_of = [](std::int64_t max_positions, const Json& scaling) {
        const Parsed parsed =
            parse({{"max_position_embeddings", max_positions}, {"rope_scaling", scaling}});
        EXPECT_EQ(parsed.problems.list, std::vector<std::string>{});
        return scaled_context_len(parsed.rope, max_positions);
    };
    const Json qwen = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    EXPECT_EQ(context_of(40960, qwen), 131072);   // as Qwen3's card says
    EXPECT_EQ(context_of(131072, qwen), 131072);  // and with max_position_embeddings raised
    EXPECT_EQ(context_of(32768, {{"type", "yarn"}, {"factor", 4.0}}), 131072);
    EXPECT_EQ(context_of(4096, {{"type", "linear"}, {"factor", 2.5}}), 10240);
    EXPECT_EQ(
        context_of(
            131072,
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"low_freq_factor", 1.0},
             {"high_freq_factor", 4.0},
             {"original_max_position_embeddings", 8192}}
        ),
        131072
    );
    EXPECT_EQ(context_of(512, nullptr), 512);
}

TEST(RopeConfig, SaysThatOneObjectReplacesTheOther) {
    const Json yarn = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    Json config = {
        {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
        {"rope_scaling", yarn}};
    const Parsed parsed = parse(config);
    EXPECT_EQ(parsed.rope.scaling, RopeConfig::Scaling::kYarn);
    EXPECT_EQ(parsed.rope.theta, 10000.0);  // transformers' default: rope_scaling has none
    ASSERT_EQ(parsed.notes.size(), 1u);
    EXPECT_NE(parsed.notes[0].find("rope_theta is 10000, not the 1000000.0"), std::string::npos)
        << parsed.notes[0];
    config["rope_theta"] = 1e6;
    EXPECT_EQ(parse(config).rope.theta, 1e6);
    config.erase("rope_parameters");
    EXPECT_TRUE(parse(config).notes.empty());
}

TEST(RopeConfig, RefusesWhatItDoesNotComputeByName) {
    const auto problem_of = [](const Json& scaling) {
        const Parsed parsed = parse({{"rope_scaling", scaling}});
        return parsed.problems.list.empty() ? "" : parsed.problems.list.front();
    };
    const auto expect = [&](const Json& scaling, std::string_view part) {
        EXPECT_NE(problem_of(scaling).find(part), std::string::npos)
            << scaling << ": " << problem_of(scaling);
    };
    expect({{"type", "dynamic"}, {"factor", 2.0}}, "type 'dynamic'");
    expect({{"rope_type", nullptr}}, "rope_type must be a string");
    expect({{"type", "linear"}}, "factor is missing");
    expect({{"type", "linear"}, {"factor", 0}}, "factor must be a number > 0");
    expect({{"type", "linear"}, {"factor", "2"}}, "factor");
    expect({{"type", "yarn"}}, "factor is missing");
    expect({{"type", "yarn"}, {"factor", 2.0}, {"attention_factor", 0.0}}, "attention_factor");
    expect({{"type", "yarn"}, {"factor", 2.0}, {"truncate", 0}}, "truncate");
    expect({{"type", "yarn"}, {"factor", 2.0}, {"beta_fast", -1}}, "beta_fast");
    expect({{"type", "yarn"}, {"factor", 2.0}, {"mscale", "1"}}, "mscale");
    expect({{"type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1}}, "rope_theta");
    expect(
        {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", nullptr}},
        "original_max_position_embeddings"
    );
    expect({{"type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
    expect({{"full_attention", {{"rope_type", "default"}}}}, "differ between layers");
    expect("yarn", "rope_scaling must be an object");
    expect({{"rope_theta", 1e300}}, "rope_theta must be a number > 0");
}

}  // namespace
}  // namespace pitstop::tp_worker
