// The slots of adapters of packed parameters, and the names of their tensors.
#include "tp_worker/weights/adapter_slots.h"

#include "tp_worker/weights/adapter_names.h"
#include "tp_worker/weights/unpack.h"
#include "tp_worker/weights/weight_layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

const std::string kBlock = "model.layers.0.mlp.";

// A block of two experts. Its router and the experts' matrices [4, in] may be adapted.
Result<AdapterSlots> slots_of(std::int64_t in, const std::string& config_text) {
    WeightSlots base;
    const std::string own = "model.layers.0.block_sparse_moe.";
    const WeightId router = base.add({.name = own + "gate.weight", .shape = {2, 4}});
    std::vector<AdaptableWeight> adaptable{{.weight = router}};
    std::vector<WeightId> downs;
    for (const char* expert : {"0", "1"}) {
        downs.push_back(base.add(
            {.name = own + "experts." + expert + ".w2.weight",
             .shape = {4, in},
             .split = Split{1, whole_share(in)}}
        ));
        adaptable.push_back({.weight = downs.back(), .is_of_expert = true});
    }
    base.pack({.name = kBlock + "gate.weight", .shape = {2, 4}, .slots = {router}});
    base.pack({.name = kBlock + "experts.down_proj", .shape = {2, 4, in}, .slots = downs});
    ASSIGN_OR_RETURN(const AdapterConfig config, AdapterConfig::parse(config_text, "a"));
    ModuleSearch search(config);
    return AdapterSlots::make(base, adaptable, search, 64);
}

TEST(AdapterSlots, ARouterHasPlainTensorsUnderBothItsNames) {
    const auto slots =
        slots_of(3, R"({"r": 2, "target_parameters": ["gate.weight", "experts.down_proj"]})");
    ASSERT_TRUE(slots.has_value()) << slots.error().message;
    const auto layout =
        WeightLayout::make(slots->slots, ExtraTensors::kRefuse, TensorNames::kOfAdapter);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    for (const std::string which : {".lora_A.weight", ".lora_B.weight"}) {
        const std::string name = "base_model.model." + kBlock + "gate" + which;
        const WeightTensor* const tensor = layout->find(name);
        ASSERT_NE(tensor, nullptr) << name;
        EXPECT_EQ(tensor, layout->find("model.layers.0.block_sparse_moe.gate" + which));
        EXPECT_EQ(layout->find_pack(name), nullptr) << "so rows, elements and a GPU may send it";
        const std::vector<Incoming> router{
            {.spec = {.name = name, .shape = tensor->shape}, .bytes = {.is_on_gpu = true}}};
        EXPECT_EQ(scattered_on_gpu(*layout, router), std::vector<std::string>{});
        const std::vector<Incoming> experts{
            {.spec = {.name = kBlock + "experts" + which, .shape = {}},
             .bytes = {.is_on_gpu = true}}};
        EXPECT_EQ(scattered_on_gpu(*layout, experts).size(), 1u);
    }
}

// The first pattern of "mlp.gate.weight" is PEFT's, which knows the router by no other name.
TEST(AdapterSlots, PatternsOfARouterAreOfTheNameThatTransformers5Has) {
    const auto slots = slots_of(
        3,
        R"({"r": 2, "lora_alpha": 2, "target_parameters": ["gate.weight"],
            "rank_pattern": {"mlp.gate.weight": 5}, "alpha_pattern": {"mlp.gate.weight": 20}})"
    );
    ASSERT_TRUE(slots.has_value()) << slots.error().message;
    ASSERT_EQ(slots->modules.size(), 1u);
    EXPECT_EQ(slots->modules[0].rank, 5);
    EXPECT_EQ(slots->modules[0].scale, 4.0F);
}

// As in transformers 5, where "w2" names no matrix of an expert.
TEST(AdapterSlots, WithTargetParametersExpertsAreNoModules) {
    const auto expect_modules = [](const std::string& targets, std::size_t num_modules) {
        const auto slots = slots_of(3, R"({"r": 2, "target_modules": ["w2"], )" + targets + "}");
        ASSERT_TRUE(slots.has_value()) << slots.error().message;
        EXPECT_EQ(slots->modules.size(), num_modules) << targets;
    };
    expect_modules(R"("target_parameters": [])", 2);
    expect_modules(R"("target_parameters": ["gate.weight"])", 1);
}

// Of square matrices, PEFT 0.17 to 0.19.0 gives A [E r, out] and B [in, r E] the same shapes.
TEST(AdapterSlots, SquareMatricesNeedAPeftThatDoesNotSwapTheirSides) {
    const auto of_version = [](std::int64_t in, const std::string& version) {
        return slots_of(
            in, R"({"r": 2, "target_parameters": ["down_proj"], "peft_version": )" + version + "}"
        );
    };
    for (const char* version :
         {"null", "\"\"", "17", R"("0.17.0")", R"("0.19.0")", R"("0.19.1.dev0")", R"("0.19")"}) {
        const auto square = of_version(4, version);
        ASSERT_FALSE(square.has_value()) << version;
        EXPECT_EQ(square.error().code, ErrorCode::kUnsupported);
        for (const std::string& word : {kBlock + "experts.down_proj", std::string("peft_version")})
            EXPECT_NE(square.error().message.find(word), std::string::npos);
        EXPECT_TRUE(of_version(3, version).has_value()) << "the shapes tell";
    }
    for (const char* version : {R"("0.19.1")", R"("0.20.0")", R"("0.21.2")", R"("1.0")"})
        EXPECT_TRUE(of_version(4, version).has_value()) << version;
}

TEST(AdapterNames, OneBaseLayerBelongsToThePathAndNoOther) {
    const std::string inner = kBlock + "experts.base_layer.lora_A.weight";
    for (const std::string wrapped :
         {"experts.base_layer.lora_A.weight",
          "experts._fsdp_wrapped_module.base_layer.lora_A.weight",
          "experts.base_layer._fsdp_wrapped_module.lora_A.weight",
          "experts.base_layer.lora_A.default.weight",
          "base_layer.experts.base_layer.lora_A.weight",
          "experts.base_layer.base_layer.lora_A.weight"})
        EXPECT_EQ(adapter_name_of("base_model.model." + kBlock + wrapped), inner) << wrapped;
    EXPECT_EQ(
        adapter_name_of(kBlock + "experts._fsdp_wrapped_module.lora_A.weight"),
        kBlock + "experts.lora_A.weight"
    );
    EXPECT_EQ(
        adapter_name_of(kBlock + "gate.base_layer.lora_A.weight"), kBlock + "gate.lora_A.weight"
    );
}

}  // namespace
}  // namespace pitstop::tp_worker
