// Adapters of experts: groups of ranks (--ep), rows with other adapters in the pass, pairs that a
// file leaves out, and bad input. adapters_test.cpp compares their logits with PEFT's
// (tests/golden/make_expert_adapters.py).
#include "messages/version_digest.h"
#include "tests/tp_worker/update/adapted_fixture.h"
#include "tests/tp_worker/update/adapter_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr double kLogitError = 1e-4;  // golden_test.cpp
const std::vector<std::string> kOfExperts{
    "mixtral/converted",
    "mixtral/experts",
    "qwen2_moe_shared/experts_and_gates",
    "qwen2_moe_shared/packed_down",
    "qwen2_moe_shared/some_experts",
    "qwen3_moe_all/experts",
    "qwen3_moe_all/packed"};
const std::string kPacked = "mixtral/converted";
const std::string kSome = "qwen2_moe_shared/some_experts";
const std::string kLayer1 = "model.layers.1.mlp.experts.";

std::string model_of(const std::string& name) { return name.substr(0, name.find('/')); }

class ExpertAdapters : public Adapted {
  protected:
    // Returns whether the test can go on.
    bool open_groups(const std::string& model, int tp, int ep, Compute compute = Compute::kFp32) {
        replica_.reset();
        updaters_.clear();
        open(model, tp, compute, Determinism::kBatchInvariant, /*has_graphs=*/true, ep);
        return !IsSkipped() && !HasFatalFailure();
    }
    // An adapter with the configuration of `name`, which an update brings.
    static messages::UpdateSpec with_config_of(const std::string& name, const Tensors& tensors) {
        messages::UpdateSpec spec = from_call(tensors);
        spec.adapter_config = text_of(load_json(adapter_dir(name) + "/adapter_config.json"));
        return spec;
    }
    Digest digest_of(const std::vector<messages::WorkerStaged>& votes) {
        std::vector<messages::RankParts> ranks;
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
            ranks.push_back({.rank = vote.outcome.rank, .parts = vote.digests});
        }
        const auto version = messages::version_digest(ranks);
        EXPECT_TRUE(version) << version.error().message;
        return version ? version->digest : Digest{};
    }
    std::int64_t adapter_bytes(int rank, messages::AdapterId id) {
        return replica_->engine(rank).adapters().find(id)->bytes();
    }

    // Long enough for every expert to have a token.
    const std::vector<TokenId> kPrompt = [] {
        std::vector<TokenId> ids;
        for (std::int32_t i = 0; i < 40; ++i) ids.push_back(TokenId{3 + i * 7 % 61});
        return ids;
    }();
};

TEST_F(ExpertAdapters, GroupsOfRanksGiveTheLogitsOfPeftAndTheDigestOfOneRank) {
    for (const std::string& name : kOfExperts) {
        SCOPED_TRACE(name);
        ASSERT_TRUE(open_groups(model_of(name), 1, 1));
        const Digest of_one = digest_of(stage(from_disk(adapter_dir(name))));
        const std::int64_t bytes_of_one = adapter_bytes(0, commit());
        const Json golden = load_json(adapter_dir(name) + "/golden.json");
        for (const auto& [tp, ep] : {std::pair{2, 1}, {2, 2}}) {
            if (tp > kRanksMax) continue;
            SCOPED_TRACE("tp " + std::to_string(tp) + " ep " + std::to_string(ep));
            ASSERT_TRUE(open_groups(model_of(name), tp, ep));
            EXPECT_EQ(digest_of(stage(from_disk(adapter_dir(name)))), of_one);
            const messages::AdapterId adapter = commit();
            EXPECT_LT(adapter_bytes(0, adapter), bytes_of_one);
            if (ep == 2) {
                // A rank has both matrices of a pair, or none: half of the experts'.
                EXPECT_LT(adapter_bytes(0, adapter), bytes_of_one * 3 / 4);
            }
            for (const Json& prompt : golden["prompts"]) {
                const std::vector<TokenId> ids = ids_of(prompt["ids"]);
                const std::vector<float> logits = logits_of(ids, adapter);
                const auto V = static_cast<std::size_t>(replica_->vocab_len());
                for (std::size_t i = 0; i < logits.size(); ++i) {
                    const double expected = prompt["logits"][i / V][i % V].get<double>();
                    EXPECT_LE(std::abs(logits[i] - expected), kLogitError) << i / V << " " << i % V;
                }
            }
        }
    }
}

// P6: the bits do not depend on which adapters share the pass, or on how a prompt is cut.
TEST_F(ExpertAdapters, P6_ARowHasTheBitsThatItHasAlone) {
    for (const auto& [tp, ep] : {std::pair{1, 1}, {2, 2}}) {
        if (tp > kRanksMax) continue;
        for (const Compute compute : {Compute::kFp32, Compute::kBf16}) {
            ASSERT_TRUE(open_groups("qwen2_moe_shared", tp, ep, compute));
            const messages::AdapterId all = load(adapter_dir("qwen2_moe_shared/experts_and_gates"));
            const messages::AdapterId some = load(adapter_dir(kSome));
            const std::vector<std::optional<messages::AdapterId>> adapters{
                all, std::nullopt, some, all, std::nullopt};
            std::vector<TestRequest> together(adapters.size());
            for (std::size_t i = 0; i < adapters.size(); ++i) {
                TestRequest& request = together[i];
                for (std::int32_t t = 0; t < 9; ++t)
                    request.tokens.push_back(TokenId{(t * 7 + static_cast<std::int32_t>(i)) % 67});
                request.prompt_len = 9;
                request.sampling = greedy();
                request.logprobs = {.enabled = true, .prompt_start = 1};
                request.slot = static_cast<SlotId>(i);
                request.adapter = adapters[i];
                for (std::int32_t p = 0; p < 4; ++p)
                    request.pages.push_back(PageId{static_cast<std::int32_t>(i) * 4 + p});
            }
            std::vector<TestRequest> alone = together;
            for (int step = 0; step < 6; ++step) {
                messages::StepPlan plan;
                std::vector<TestRequest*> rows;
                for (TestRequest& request : together) {
                    add_row(&request, std::ssize(request.tokens) - request.num_done, &plan);
                    rows.push_back(&request);
                }
                run_step(replica_.get(), std::move(plan), rows);
            }
            for (TestRequest& request : alone) {
                for (const std::int64_t num : {3, 1, 5, 1, 1, 1, 1, 1}) {
                    messages::StepPlan plan;
                    add_row(&request, num, &plan);
                    run_step(replica_.get(), std::move(plan), {&request});
                }
            }
            for (std::size_t i = 0; i < alone.size(); ++i) {
                EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
                EXPECT_EQ(together[i].outputs, alone[i].outputs) << i;
                EXPECT_EQ(together[i].scores, alone[i].scores) << i;
            }
            EXPECT_NE(together[0].scores, together[1].scores) << "an adapter changes something";
        }
    }
}

// The model alone, beside rows with adapters, has the bits of a tree that has no adapter.
TEST_F(ExpertAdapters, ThePairsOfAnAdapterDoNotReachOtherRows) {
    ASSERT_TRUE(open_groups("mixtral", 1, 1));
    const std::vector<float> before = logits_of(kPrompt, std::nullopt);
    const messages::AdapterId adapter = load(adapter_dir("mixtral/experts"));
    EXPECT_NE(logits_of(kPrompt, adapter), before);
    EXPECT_EQ(logits_of(kPrompt, std::nullopt), before);
}

// A pair that is left out is a pair of zeros: the base's expert. A later part may bring it.
TEST_F(ExpertAdapters, APairThatIsLeftOutIsTheBaseUntilAnUpdateBringsIt) {
    ASSERT_TRUE(open_groups("qwen2_moe_shared", kRanksMax, kRanksMax));
    Tensors tensors = tensors_of(kSome);
    const std::string a = kLayer1 + "2.up_proj.lora_A.weight";
    const std::string b = kLayer1 + "2.up_proj.lora_B.weight";
    ASSERT_TRUE(tensors.contains(a) && tensors.contains(b));
    ASSERT_FALSE(tensors.contains(kLayer1 + "1.up_proj.lora_A.weight")) << "the file lacks it";
    const Tensors whole = tensors;
    for (const std::string& name : {a, b})
        tensors[name].values.assign(tensors[name].values.size(), 0);
    const Digest of_zeros = digest_of(stage(with_config_of(kSome, tensors)));
    const std::vector<float> with_zeros = logits_of(kPrompt, commit());
    tensors.erase(a);
    tensors.erase(b);
    EXPECT_EQ(digest_of(stage(with_config_of(kSome, tensors))), of_zeros);
    const messages::AdapterId without = commit();
    EXPECT_EQ(logits_of(kPrompt, without), with_zeros);

    messages::UpdateSpec part = from_call({{a, whole.at(a)}, {b, whole.at(b)}});
    part.partial = true;
    const Digest after_part = digest_of(stage(std::move(part), without));
    const std::vector<float> logits = logits_of(kPrompt, commit());
    EXPECT_NE(logits, with_zeros);
    EXPECT_EQ(digest_of(stage(with_config_of(kSome, whole))), after_part);
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);
}

TEST_F(ExpertAdapters, BadPairsAreRefusedByName) {
    ASSERT_TRUE(open_groups("qwen2_moe_shared", kRanksMax, kRanksMax));
    const Tensors whole = tensors_of(kSome);
    const std::string b = kLayer1 + "2.up_proj.lora_B.weight";
    const auto refused = [&](const Tensors& tensors, const std::string& why) {
        expect_refused(with_config_of(kSome, tensors), ErrorCode::kInvalidArgument, why);
    };
    Tensors changed = whole;
    changed.erase(b);
    refused(changed, "'" + b + "' is missing");

    changed = whole;
    changed[kLayer1 + "6.up_proj.lora_A.weight"] = whole.at(kLayer1 + "5.up_proj.lora_A.weight");
    refused(changed, "experts.6.up_proj.lora_A.weight' is no tensor of the adapter");

    changed = whole;
    changed[kLayer1 + "up_proj.lora_B.weight"] = whole.at(b);
    refused(changed, "experts.up_proj.lora_B.weight' is no tensor of the adapter");

    changed = whole;
    std::swap(changed[b].shape[0], changed[b].shape[1]);
    refused(changed, "'" + b + "' has shape [8, 20]; the config requires [20, 8]");

    // Modules that every token uses may not be left out.
    changed = whole;
    changed.erase("model.layers.0.mlp.shared_expert.down_proj.lora_A.weight");
    changed.erase("model.layers.0.mlp.shared_expert.down_proj.lora_B.weight");
    refused(changed, "shared_expert.down_proj.lora_A.weight' is missing");

    ASSERT_TRUE(open_groups("qwen2_moe_shared", 1, 1));  // all ranks must see the value
    changed = whole;
    changed[b].values[7] = std::numeric_limits<float>::infinity();
    refused(changed, "'" + b + "' is not finite");
}

// The place of an expert's element in PEFT's packed tensors, by its definition: A [E, r, in], and
// B [out, r, E].
TEST_F(ExpertAdapters, PackedTensorsAreThoseOfEachExpert) {
    ASSERT_TRUE(open_groups("mixtral", kRanksMax, kRanksMax));
    constexpr std::size_t kE = 4;
    constexpr std::size_t kI = 36;
    const Tensors packed = tensors_of(kPacked);
    Tensors apart;
    for (const auto& [name, tensor] : packed) {
        if (name.find("experts.") == std::string::npos) {
            apart[name] = tensor;
            continue;
        }
        const bool is_inner = name.find("base_layer") != std::string::npos;
        const bool is_a = name.find("lora_A") != std::string::npos;
        const std::string block = name.substr(0, name.find("mlp."));
        const auto rows = static_cast<std::size_t>(tensor.shape[0]);
        const auto cols = static_cast<std::size_t>(tensor.shape[1]);
        const std::size_t r = (is_a ? rows : cols) / kE;
        const std::vector<std::string> matrices =
            is_inner ? std::vector<std::string>{"w1", "w3"} : std::vector<std::string>{"w2"};
        for (std::size_t i = 0; i < matrices.size() * kE; ++i) {
            const std::size_t e = i % kE;
            const std::string& matrix = matrices[i / kE];
            Tensor& one = apart
                [block + "block_sparse_moe.experts." + std::to_string(e) + "." + matrix +
                 (is_a ? ".lora_A.weight" : ".lora_B.weight")];
            const std::size_t num_rows = is_a ? r : rows / matrices.size();
            const std::size_t num_cols = is_a ? cols : r;
            for (std::size_t row = 0; row < num_rows; ++row) {
                for (std::size_t col = 0; col < num_cols; ++col) {
                    const std::size_t at =
                        is_a ? (e * r + row) * cols + col
                             : (row + (matrix == "w3" ? kI : 0)) * cols + col * kE + e;
                    one.values.push_back(tensor.values[at]);
                }
            }
            one.shape = {static_cast<std::int64_t>(num_rows), static_cast<std::int64_t>(num_cols)};
        }
    }
    const Digest digest = digest_of(stage(from_disk(adapter_dir(kPacked))));
    const std::vector<float> logits = logits_of(kPrompt, commit());
    EXPECT_EQ(digest_of(stage(with_config_of(kPacked, packed))), digest) << "sent in the call";
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);
    EXPECT_EQ(digest_of(stage(with_config_of(kPacked, apart))), digest);
    const messages::AdapterId last = commit();
    EXPECT_EQ(logits_of(kPrompt, last), logits);

    // A part of the adapter may be a packed tensor.
    const std::string b = "model.layers.1.mlp.experts.lora_B.weight";
    Tensors changed = packed;
    for (float& value : changed[b].values) value = 0.25F - value;
    messages::UpdateSpec part = from_call({{b, changed[b]}});
    part.partial = true;
    const Digest after_part = digest_of(stage(std::move(part), last));
    EXPECT_NE(after_part, digest);
    commit();
    EXPECT_EQ(digest_of(stage(with_config_of(kPacked, changed))), after_part);
    commit();
}

TEST_F(ExpertAdapters, BadPackedTensorsAreRefusedByName) {
    ASSERT_TRUE(open_groups("mixtral", kRanksMax, kRanksMax));
    const Tensors packed = tensors_of(kPacked);
    const std::string a = "model.layers.0.mlp.experts.base_layer.lora_A.weight";
    const auto refused = [&](const Tensors& tensors, const std::string& why) {
        expect_refused(with_config_of(kPacked, tensors), ErrorCode::kInvalidArgument, why);
    };
    Tensors changed = packed;
    changed[a].shape = {12, 80};
    refused(changed, "'" + a + "' has shape [12, 80]; the config requires [24, 40]");

    changed = packed;
    changed.erase(a);
    refused(changed, "experts.0.w1.lora_A.weight' is missing");

    changed = packed;
    changed["model.layers.0.block_sparse_moe.experts.3.w1.lora_A.weight"] = {
        .shape = {6, 40}, .values = std::vector<float>(240)};
    refused(changed, "experts.3.w1.lora_A.weight' appears twice");

    messages::UpdateSpec spec = with_config_of(kPacked, packed);
    spec.adapter_config = R"({"peft_type": "LORA", "target_parameters": ["embed_tokens.weight"]})";
    expect_refused(spec, ErrorCode::kUnsupported, "'model.embed_tokens' are not served");
    spec.adapter_config = R"({"peft_type": "LORA", "target_parameters": ["norm.weight"]})";
    expect_refused(spec, ErrorCode::kUnsupported, "'model.norm.weight' are not served");
    spec.adapter_config =
        R"({"peft_type": "LORA", "r": 65, "target_parameters": ["experts.down_proj"]})";
    expect_refused(
        spec,
        ErrorCode::kInvalidArgument,
        "the rank of 'model.layers.0.block_sparse_moe.experts.0.w2', "
    );
    spec.adapter_config = R"({"peft_type": "LORA", "target_parameters": ["experts.c_proj"]})";
    expect_refused(spec, ErrorCode::kInvalidArgument, "target_parameters");
}

// An adapter without any tensor would be the base model.
TEST_F(ExpertAdapters, AnAdapterOfExpertsAloneNeedsATensor) {
    ASSERT_TRUE(open_groups("mixtral", 1, 1));
    messages::UpdateSpec spec = from_call({});
    spec.adapter_config = R"({"peft_type": "LORA", "r": 2, "target_modules": ["w2"]})";
    expect_refused(spec, ErrorCode::kInvalidArgument, "experts.0.w2.lora_A.weight' is missing");
}

}  // namespace
}  // namespace pitstop::tp_worker
