// Adapters of experts: groups of ranks (--ep), rows with other adapters in the pass, and bad
// input. left_out_pairs_test.cpp tests pairs that are left out. adapters_test.cpp compares the
// logits of such adapters with PEFT's (tests/golden/make_expert_adapters.py).
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/update/mixture_adapters_fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <thread>
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

class AdaptersOfExperts : public MixtureAdapters {};

std::string model_of(const std::string& name) { return name.substr(0, name.find('/')); }

TEST_F(AdaptersOfExperts, GroupsOfRanksGiveTheLogitsOfPeftAndTheDigestOfOneRank) {
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

TEST_F(AdaptersOfExperts, AnExpertsUpMayHaveAPairWithoutItsGate) {
    ASSERT_TRUE(open_groups("mixtral", kRanksMax, kRanksMax));
    const auto config_of = [](const std::string& modules) {
        return R"({"peft_type": "LORA", "r": 2, "target_modules": [)" + modules + "]}";
    };
    messages::UpdateSpec spec;
    const auto logits = [&](const Tensors& tensors, const std::string& config) {
        spec = from_call(tensors);
        spec.adapter_config = config;
        digest_of(stage(spec));
        return logits_of(kPrompt, commit());
    };
    Tensors both = some_tensors_of(config_of(R"("w1", "w3")"));
    Tensors of_up;
    for (auto& [name, tensor] : both) {
        if (name.find(".w3.") != std::string::npos)
            of_up[name] = tensor;
        else
            tensor.values.assign(tensor.values.size(), 0);
    }
    const std::vector<float> expected = logits(both, config_of(R"("w1", "w3")"));
    EXPECT_NE(expected, logits_of(kPrompt, std::nullopt));
    EXPECT_EQ(logits(of_up, config_of(R"("w3")")), expected);
}

// P6: the bits do not depend on which adapters share the pass, or on how a prompt is cut.
TEST_F(AdaptersOfExperts, P6_ARowHasTheBitsThatItHasAlone) {
    for (const auto& [tp, ep] : {std::pair{1, 1}, {2, 2}}) {
        if (tp > kRanksMax) continue;
        for (const Compute compute : {Compute::kFp32, Compute::kBf16}) {
            ASSERT_TRUE(open_groups("qwen2_moe_shared", tp, ep, compute));
            const messages::AdapterId all = load(adapter_dir("qwen2_moe_shared/experts_and_gates"));
            const messages::AdapterId some = load(adapter_dir(kSome));
            const std::vector<std::optional<messages::AdapterId>> adapters{
                all, std::nullopt, some, all, std::nullopt};
            expect_bits_of_each_alone(adapters);
        }
    }
}

// The model alone, in one pass with rows that have an adapter, has the bits of a tree that has no
// adapter.
TEST_F(AdaptersOfExperts, ThePairsOfAnAdapterDoNotReachOtherRows) {
    for (const std::string model : {"mixtral", "qwen2_moe_shared"}) {
        SCOPED_TRACE(model);
        ASSERT_TRUE(open_groups(model, 1, 1));
        const std::vector<float> before = logits_of(kPrompt, std::nullopt);
        const messages::AdapterId adapter = load(adapter_dir(
            model == "mixtral" ? "mixtral/experts" : "qwen2_moe_shared/experts_and_gates"
        ));
        const std::vector<float> adapted = logits_of(kPrompt, adapter);
        EXPECT_NE(adapted, before);
        messages::StepPlan plan;
        std::vector<TestRequest> requests(3);
        std::vector<TestRequest*> in_order;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            TestRequest& request = requests[i];
            request.tokens = kPrompt;
            request.prompt_len = std::ssize(kPrompt);
            request.sampling = greedy();
            request.slot = static_cast<SlotId>(i);
            if (i == 1) request.adapter = adapter;
            for (std::int32_t p = 0; p < 9; ++p)
                request.pages.push_back(PageId{static_cast<std::int32_t>(i) * 9 + p});
            add_row(&request, request.prompt_len, &plan);
            in_order.push_back(&request);
        }
        run_step(replica_.get(), std::move(plan), in_order);
        for (std::size_t i = 0; i < requests.size(); ++i) {
            std::vector<std::int32_t> rows;
            for (std::size_t t = 0; t < kPrompt.size(); ++t)
                rows.push_back(static_cast<std::int32_t>(i * kPrompt.size() + t));
            EXPECT_TRUE(replica_->read_logits(rows) == (i == 1 ? adapted : before)) << i;
        }
    }
}

// P6: a sequence that is scored along the routes on which an adapted router sampled it, beside a
// row of the model alone, has the bits of sampling: the weights of the experts are the adapted
// ones.
TEST_F(AdaptersOfExperts, P6_RoutesOfAnAdaptedRouterThatAreBroughtGiveTheBitsOfSampling) {
    for (const Compute compute : {Compute::kFp32, Compute::kBf16}) {
        ASSERT_TRUE(open_groups("qwen2_moe_shared", kRanksMax, kRanksMax, compute));
        const messages::AdapterId id = load(adapter_dir("qwen2_moe_shared/experts_and_gates"));
        const auto request_of = [&](std::int32_t slot, std::vector<TokenId> tokens) {
            TestRequest request;
            request.slot = static_cast<SlotId>(slot);
            request.prompt_len = std::ssize(tokens);
            request.tokens = std::move(tokens);
            request.sampling = greedy();
            request.logprobs = {.enabled = true, .prompt_start = 0};
            request.wants_routes = true;
            for (std::int32_t p = 0; p < 10; ++p) request.pages.push_back(PageId{slot * 10 + p});
            return request;
        };
        TestRequest sampled = request_of(0, kPrompt);
        sampled.adapter = id;
        for (int i = 0; i < 6; ++i) {
            messages::StepPlan plan;
            add_row(&sampled, std::ssize(sampled.tokens) - sampled.num_done, &plan);
            run_step(replica_.get(), std::move(plan), {&sampled});
        }
        TestRequest bare = request_of(1, sampled.tokens);
        TestRequest scored = request_of(2, sampled.tokens);
        scored.adapter = id;
        scored.brought = sampled.routes;
        TestRequest unadapted = request_of(3, sampled.tokens);
        unadapted.brought = sampled.routes;
        while (scored.num_done < scored.prompt_len) {
            messages::StepPlan plan;
            const std::vector<TestRequest*> rows{&bare, &scored, &unadapted};
            for (TestRequest* const request : rows)
                add_row(
                    request, std::min<std::int64_t>(7, scored.prompt_len - request->num_done), &plan
                );
            run_step(replica_.get(), std::move(plan), rows);
        }
        for (std::size_t k = 0; k < sampled.outputs.size(); ++k) {
            const std::int64_t at = std::ssize(kPrompt) - 1 + static_cast<std::int64_t>(k);
            EXPECT_EQ(scored.scores.at(at), sampled.outputs[k]) << k;
        }
        scored.routes.erase(scored.prompt_len - 1);  // sampling ended before that pass
        EXPECT_EQ(scored.routes, sampled.routes);
        unadapted.routes.erase(unadapted.prompt_len - 1);
        EXPECT_EQ(unadapted.routes, sampled.routes);
        bare.routes.erase(bare.prompt_len - 1);
        EXPECT_NE(bare.routes, sampled.routes) << "the adapter changes choices of the routers";
        EXPECT_NE(unadapted.scores, scored.scores) << "the adapter changes more than the routes";
    }
}

// With --ep a rank may have none of the adapter's experts. Its part of the adapter has no bytes.
TEST_F(AdaptersOfExperts, ARankWithoutTheAdaptedExpertServesEvictsAndKeepsIt) {
    const std::string name = "qwen3_moe_all/experts";
    Json config = load_json(adapter_dir(name) + "/adapter_config.json");
    ASSERT_TRUE(open_groups("qwen3_moe_all", 1, 1));
    Tensors of_all = some_tensors_of(text_of(config));
    Tensors of_one;
    for (auto& [key, tensor] : of_all) {
        if (key.find(".experts.0.gate_proj.") != std::string::npos)
            of_one[key] = tensor;
        else
            tensor.values.assign(tensor.values.size(), 0);
    }
    digest_of(stage(with_config_of(name, of_all)));
    const std::vector<float> expected = logits_of(kPrompt, commit());
    config["target_modules"] = {"experts.0.gate_proj"};
    messages::UpdateSpec spec = from_call(of_one);
    spec.adapter_config = text_of(config);
    const Digest digest = digest_of(stage(spec));
    commit();

    ASSERT_TRUE(open_groups("qwen3_moe_all", kRanksMax, kRanksMax));
    const test::TempDir kept;
    for (int rank = 0; rank < kRanksMax; ++rank) {
        AdapterStore& store = updaters_[static_cast<std::size_t>(rank)]->adapters();
        store.keep_in(
            {.directory = kept.path(),
             .rank = Rank{rank},
             .tp = kRanksMax,
             .pace = pace_,
             .fault_point = FaultPoint("none")}
        );
        store.limit({.bytes_max = 16 << 20, .directory = testing::TempDir()});
    }
    EXPECT_EQ(digest_of(stage(spec)), digest);
    const messages::AdapterId first = commit();
    EXPECT_GT(adapter_bytes(0, first), 0);
    if (kRanksMax > 1) {
        EXPECT_EQ(replica_->engine(1).adapters().find(first)->layout().bytes(), 0);
    }
    const std::vector<float> logits = logits_of(kPrompt, first);
    EXPECT_NE(logits, logits_of(kPrompt, std::nullopt));
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
        ASSERT_NEAR(logits[i], expected[i], kLogitError) << i;

    // A part begins with a copy of the version.
    messages::UpdateSpec part = from_call(Tensors{*of_one.begin()});
    part.partial = true;
    EXPECT_EQ(digest_of(stage(part, first)), digest);
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);
    for (const auto& updater : updaters_)
        ASSERT_TRUE(updater->handle_order(encode(messages::WorkerAdapters{.evict = {first}})));
    for (const auto& updater : updaters_) {
        const messages::WorkerAdapters order{.restore = {first}};
        const auto answer = tp_worker::ask<messages::WorkerRestored>(*updater, order);
        ASSERT_TRUE(answer);
        EXPECT_TRUE(answer->verdict.is_done()) << answer->verdict.message;
    }
    EXPECT_EQ(logits_of(kPrompt, first), logits);

    const std::string directory =
        kept.path(fmt::format("adapter-{}", static_cast<std::uint64_t>(first)));
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(directory) && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(digest_of(stage(from_disk(directory))), digest);
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);
    updaters_.clear();  // their keepers write into the directory
}

TEST_F(AdaptersOfExperts, BadPairsAreRefusedByName) {
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
TEST_F(AdaptersOfExperts, PackedTensorsAreThoseOfEachExpert) {
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

TEST_F(AdaptersOfExperts, BadPackedTensorsAreRefusedByName) {
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
    // A packed pair may not be left out, unlike that of a single expert.
    changed.erase("model.layers.0.mlp.experts.base_layer.lora_B.weight");
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

}  // namespace
}  // namespace pitstop::tp_worker
