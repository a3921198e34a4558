// Pairs of experts and routers that a sender leaves out of an adapter.
#include "tests/log_lines.h"
#include "tests/tp_worker/update/mixture_adapters_fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

const std::string kSome = "qwen2_moe_shared/some_experts";
const std::string kLayer1 = "model.layers.1.mlp.experts.";

class LeftOutPairs : public MixtureAdapters {};

// A pair that is left out is a pair of zeros: the base's expert. A later part may bring it.
TEST_F(LeftOutPairs, APairThatIsLeftOutIsTheBaseUntilAnUpdateBringsIt) {
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

// An adapter without any tensor would be the base model.
TEST_F(LeftOutPairs, AnAdapterOfExpertsAloneNeedsATensor) {
    ASSERT_TRUE(open_groups("mixtral", 1, 1));
    messages::UpdateSpec spec = from_call({});
    spec.adapter_config = R"({"peft_type": "LORA", "r": 2, "target_modules": ["w2"]})";
    expect_refused(spec, ErrorCode::kInvalidArgument, "experts.0.w2.lora_A.weight' is missing");
}

// A session lacks every tensor until the first one arrives, and one matrix without the other.
TEST_F(LeftOutPairs, ASessionCountsTheTensorsThatItLacks) {
    ASSERT_TRUE(open_groups("mixtral", kRanksMax, kRanksMax));
    messages::UpdateSpec session;
    session.adapter = "one";
    session.source.kind = messages::SourceKind::kBuckets;
    session.adapter_config = R"({"peft_type": "LORA", "r": 2, "target_modules": ["w2"]})";
    const Tensors all = some_tensors_of(session.adapter_config);
    const messages::UpdateId update{++last_update_};
    const auto fill = [&](Updater& updater, const std::string& tensor) {
        const messages::WorkerFill order{
            .update = update,
            .bucket = 1,
            .source = from_call({{tensor, all.at(tensor)}}).source,
            .timeout_ms = 10'000};
        return tp_worker::ask<messages::WorkerFilled>(updater, order);
    };
    const std::string pair = "model.layers.0.block_sparse_moe.experts.2.w2.";
    for (const auto& updater : updaters_) {
        const auto opened = tp_worker::ask<messages::WorkerFilled>(
            *updater, messages::WorkerStage{.update = update, .spec = session}
        );
        ASSERT_TRUE(opened && opened->outcome.ok);
        EXPECT_EQ(opened->outcome.num_missing, std::ssize(all));
        const auto half = fill(*updater, pair + "lora_A.weight");
        ASSERT_TRUE(half && half->outcome.ok);
        EXPECT_EQ(half->outcome.num_missing, 1);
        EXPECT_EQ(half->outcome.missing, std::vector<std::string>{pair + "lora_B.weight"});
        const auto whole = fill(*updater, pair + "lora_B.weight");
        ASSERT_TRUE(whole && whole->outcome.ok);
        EXPECT_EQ(whole->outcome.num_missing, 0);
        EXPECT_TRUE(tp_worker::ask<messages::WorkerDropped>(
            *updater, messages::WorkerDrop{.update = update}
        ));
    }
}

// A sender may have forgotten the pairs that it left out.
TEST_F(LeftOutPairs, PairsThatAreLeftOutAreLogged) {
    ASSERT_TRUE(open_groups("mixtral", kRanksMax, kRanksMax));
    const std::string config = R"({"peft_type": "LORA", "r": 2, "target_modules": ["w2"]})";
    const Tensors all = some_tensors_of(config);
    Tensors of_one;
    for (const std::string matrix : {"lora_A.weight", "lora_B.weight"}) {
        const std::string name = "model.layers.0.block_sparse_moe.experts.0.w2." + matrix;
        of_one[name] = all.at(name);
    }
    const std::string warning = fmt::format(
        "{} tensor(s) of adapter 'one' are left out and count as zeros, the first "
        "'model.layers.0.block_sparse_moe.experts.1.w2.lora_A.weight'",
        all.size() - 2
    );
    const test::LogLines log;
    messages::UpdateSpec spec = from_call(of_one);
    spec.adapter_config = config;
    digest_of(stage(spec));
    const messages::AdapterId adapter = commit();
    EXPECT_EQ(log.num_of(warning), 1U) << "rank 0 alone";
    spec.adapter_config.clear();
    spec.partial = true;
    digest_of(stage(spec, adapter));
    commit();
    spec = from_call(all);
    spec.adapter_config = config;
    digest_of(stage(spec));
    commit();
    EXPECT_EQ(log.num_of("left out"), 1U) << "a part, or all tensors, leave nothing out";
}

// The literal word: transformers 5 has routers as parameters, for which PEFT makes no pairs.
TEST_F(LeftOutPairs, AllLinearMayLeaveOutRouters) {
    ASSERT_TRUE(open_groups("qwen2_moe_shared", kRanksMax, kRanksMax));
    const std::string config = R"({"peft_type": "LORA", "r": 2, "target_modules": "all-linear"})";
    const auto spec_of = [&](const Tensors& tensors) {
        messages::UpdateSpec spec = from_call(tensors);
        spec.adapter_config = config;
        return spec;
    };
    Tensors zeros = some_tensors_of(config);
    Tensors without;
    std::size_t num_of_routers = 0;
    for (auto& [name, tensor] : zeros) {
        const bool is_of_router = name.find(".mlp.gate.") != std::string::npos ||
                                  name.find(".shared_expert_gate.") != std::string::npos;
        num_of_routers += is_of_router ? 1 : 0;
        if (is_of_router || name.find(".experts.") != std::string::npos)
            tensor.values.assign(tensor.values.size(), 0);
        else
            without[name] = tensor;
    }
    ASSERT_GE(num_of_routers, 4U);
    const Digest of_zeros = digest_of(stage(spec_of(zeros)));
    const std::vector<float> logits = logits_of(kPrompt, commit());
    EXPECT_EQ(digest_of(stage(spec_of(without))), of_zeros);
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);

    const std::string router = "model.layers.0.mlp.gate.";
    Tensors changed = without;
    changed[router + "lora_A.weight"] = zeros.at(router + "lora_A.weight");
    expect_refused(
        spec_of(changed), ErrorCode::kInvalidArgument, router + "lora_B.weight' is missing"
    );
    changed = without;
    changed.erase("model.layers.0.mlp.shared_expert.up_proj.lora_A.weight");
    changed.erase("model.layers.0.mlp.shared_expert.up_proj.lora_B.weight");
    expect_refused(
        spec_of(changed), ErrorCode::kInvalidArgument, "up_proj.lora_A.weight' is missing"
    );
    // A router that is named is not left out.
    messages::UpdateSpec named = spec_of(without);
    named.adapter_config = text_of(Json{
        {"peft_type", "LORA"},
        {"r", 2},
        {"target_modules",
         {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate"}}});
    expect_refused(named, ErrorCode::kInvalidArgument, router + "lora_A.weight' is missing");
}

}  // namespace
}  // namespace pitstop::tp_worker
