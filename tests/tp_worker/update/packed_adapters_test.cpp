// Adapters whose tensors have the names of transformers 5, in a model that has other names.
#include "tests/tp_worker/update/adapted_fixture.h"
#include "tests/tp_worker/update/adapter_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

const std::string kB = "model.layers.1.mlp.gate.lora_B.weight";

// Of Mixtral's routers [4, 40].
Tensors routers() {
    Tensors tensors;
    int next = 0;
    for (const std::string layer : {"0", "1"}) {
        Tensor& a = tensors["model.layers." + layer + ".mlp.gate.lora_A.weight"];
        Tensor& b = tensors["model.layers." + layer + ".mlp.gate.lora_B.weight"];
        a.shape = {3, 40};
        b.shape = {4, 3};
        for (int i = 0; i < 120; ++i) a.values.push_back(static_cast<float>(next++ % 13 - 6) / 8);
        for (int i = 0; i < 12; ++i) b.values.push_back(static_cast<float>(next++ % 7 - 3) / 4);
    }
    return tensors;
}

class PackedAdapters : public Adapted {
  protected:
    messages::AdapterId load(const Tensors& tensors, const std::string& settings) {
        messages::UpdateSpec spec = from_call(tensors);
        spec.adapter_config =
            R"({"peft_type": "LORA", "target_parameters": ["gate.weight"], )" + settings + "}";
        return stage_and_commit(std::move(spec));
    }
    messages::AdapterId stage_and_commit(
        messages::UpdateSpec spec, std::optional<messages::AdapterId> begins_as = std::nullopt
    ) {
        for (const messages::WorkerStaged& vote : stage(std::move(spec), begins_as))
            EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
        return commit();
    }

    const std::vector<TokenId> kPrompt{TokenId{3}, TokenId{9}, TokenId{27}, TokenId{5}};
};

TEST_F(PackedAdapters, PatternsOfARoutersParameterAreComputed) {
    open("mixtral", kRanksMax);
    if (IsSkipped() || HasFatalFailure()) return;
    const auto logits = [&](const std::string& settings) {
        return logits_of(kPrompt, load(routers(), settings));
    };
    const std::vector<float> expected = logits(R"("r": 3, "lora_alpha": 9)");
    EXPECT_NE(logits(R"("r": 3, "lora_alpha": 1)"), expected);
    EXPECT_EQ(
        logits(R"("r": 3, "lora_alpha": 1, "alpha_pattern": {"mlp.gate.weight": 9})"), expected
    );
    EXPECT_EQ(
        logits(R"("r": 2, "lora_alpha": 9, "rank_pattern": {"mlp.gate.weight": 3})"), expected
    );
}

TEST_F(PackedAdapters, ARoutersTensorMayBeSentAsElements) {
    open("mixtral", kRanksMax);
    if (IsSkipped() || HasFatalFailure()) return;
    const std::string settings = R"("r": 3, "lora_alpha": 9)";
    Tensors tensors = routers();
    const messages::AdapterId first = load(tensors, settings);
    messages::UpdateSpec part;
    part.adapter = "one";
    part.partial = true;
    part.base_digest = std::string(32, 'a');  // the scheduler has compared it
    part.source.kind = messages::SourceKind::kTensors;
    part.source.format = messages::TensorFormat::kSparse;
    part.source.tensors.push_back({.name = kB, .dtype = "F32", .shape = {4, 3}});
    part.source.num_updates = {1};
    const std::int32_t index = 7;
    messages::RankPayload payload;
    payload.data.values.resize(sizeof index);
    std::memcpy(payload.data.values.data(), &index, sizeof index);
    for (const std::uint8_t byte : bytes_of({5.0F})) payload.data.values.push_back(byte);
    part.source.payloads.push_back(std::move(payload));
    const std::vector<float> logits = logits_of(kPrompt, stage_and_commit(part, first));
    EXPECT_NE(logits, logits_of(kPrompt, first));
    tensors[kB].values[7] = 5.0F;
    EXPECT_EQ(logits_of(kPrompt, load(tensors, settings)), logits);
}

}  // namespace
}  // namespace pitstop::tp_worker
