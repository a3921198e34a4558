#include "tp_worker/weights/weight_layout.h"

#include "kernels/ops.h"
#include "messages/version_digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/test_replica.h"
#include "tests/tp_worker/weights/shard_definition.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace pitstop::tp_worker {
namespace {

const std::vector<std::string> kModels{
    "qwen3_tied",
    "qwen3_untied_biased",
    "qwen3_three_kv_heads",
    "qwen2_seven_to_one",
    "llama_biased",
    "llama_rope_llama3",
    "mistral_window",
};

std::string golden_dir(const std::string& name) {
    return source_dir() + "/tests/data/golden/" + name;
}

ModelConfig config_of(const std::string& directory) {
    Result<ModelConfig> config = ModelConfig::read(directory);
    EXPECT_TRUE(config.has_value());
    return *std::move(config);
}

std::vector<checkpoint::TensorSpec> specs_of(const checkpoint::Checkpoint& checkpoint) {
    std::vector<checkpoint::TensorSpec> specs;
    for (const checkpoint::StoredTensor& stored : checkpoint.tensors())
        specs.push_back(stored.spec);
    return specs;
}

// A whole tensor of the checkpoint, as stored (bf16).
std::vector<bf16> stored_tensor(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
    const checkpoint::StoredTensor* stored = checkpoint.find(name);
    std::vector<bf16> values(static_cast<std::size_t>(stored->bytes / 2));
    EXPECT_TRUE(checkpoint.read(*stored, 0, std::as_writable_bytes(std::span(values))).has_value());
    return values;
}

struct Shard {
    WeightLayout layout;
    std::vector<std::byte> arena;
};

Shard load(const ModelConfig& config, const std::string& directory, int rank, int tp, int ep = 1) {
    Result<WeightLayout> layout =
        layout_of(config, static_cast<Rank>(rank), tp, ExtraTensors::kRefuse, ep);
    EXPECT_TRUE(layout.has_value());
    const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(directory);
    std::vector<std::byte> arena(static_cast<std::size_t>(layout->bytes()));
    const Result<> loaded = load_weights(
        *layout, {*layout, *checkpoint}, directory, *kernels::reference_ops(), {}, arena.data()
    );
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
    return {*std::move(layout), std::move(arena)};
}

// The file is cut at a page, where reading the mapping raises SIGBUS, or inside a page, whose rest
// reads as zeros.
TEST(WeightLoader, AFileThatIsCutShortWhileItIsReadIsAnErrorNotACrash) {
    for (const std::uintmax_t left : {std::uintmax_t{64} << 10, (std::uintmax_t{64} << 10) + 100}) {
        const test::TempDir dir;
        dir.copy_from(model_dir("stories"));
        const ModelConfig config = config_of(dir.path());
        const Result<WeightLayout> layout = layout_of(config, Rank{0}, 1);
        const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(dir.path());
        ASSERT_TRUE(layout && checkpoint);
        std::vector<std::byte> arena(static_cast<std::size_t>(layout->bytes()));
        dir.truncate("model.safetensors", left);
        const Result<> loaded = load_weights(
            *layout, {*layout, *checkpoint}, dir.path(), *kernels::reference_ops(), {}, arena.data()
        );
        ASSERT_FALSE(loaded);
        EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss);
        EXPECT_NE(loaded.error().message.find("shorter"), std::string::npos)
            << loaded.error().message;
    }
}

TEST(WeightLayout, NamesExactlyTheTensorsThatTransformersWrites) {
    for (const std::string& name : kModels) {
        SCOPED_TRACE(name);
        const Result<WeightLayout> layout = layout_of(config_of(golden_dir(name)), Rank{0}, 1);
        const Result<checkpoint::Checkpoint> checkpoint =
            checkpoint::Checkpoint::open(golden_dir(name));
        ASSERT_TRUE(layout.has_value() && checkpoint.has_value());
        EXPECT_EQ(
            find_problems(*layout, specs_of(*checkpoint), Completeness::kWhole),
            std::vector<std::string>{}
        );
        EXPECT_EQ(layout->tensors().size(), checkpoint->tensors().size());
    }
}

TEST(WeightLayout, PlacesDoNotOverlap) {
    for (const int tp : {1, 2, 4}) {
        const Result<WeightLayout> layout =
            layout_of(config_of(golden_dir("llama_biased")), static_cast<Rank>(tp - 1), tp);
        std::map<std::int64_t, std::int64_t> ends;
        for (const WeightTensor& tensor : layout->tensors()) {
            EXPECT_EQ(tensor.offset % 64, 0);
            EXPECT_TRUE(ends.emplace(tensor.offset, tensor.offset + tensor.bytes()).second);
        }
        std::int64_t last = 0;
        for (const auto& [begin, end] : ends) {
            EXPECT_GE(begin, last);
            last = end;
        }
        EXPECT_LE(last, layout->bytes());
    }
}

// Element by element: a shard holds its definition's elements, and zeros as padding.
TEST(WeightLayout, ShardsHoldTheirPartsOfTheCheckpoint) {
    for (const std::string& name : kModels) {
        const ModelConfig config = config_of(golden_dir(name));
        const Result<checkpoint::Checkpoint> checkpoint =
            checkpoint::Checkpoint::open(golden_dir(name));
        for (const int tp : {1, 2, 4}) {
            if (config.num_q_heads % tp != 0) continue;
            std::vector<std::int64_t> ffns;
            for (int rank = 0; rank < tp; ++rank) {
                ffns.push_back(layout_of(config, static_cast<Rank>(rank), tp)
                                   ->find("model.layers.0.mlp.gate_proj.weight")
                                   ->rows);
            }
            for (int rank = 0; rank < tp; ++rank) {
                SCOPED_TRACE(testing::Message() << name << " rank " << rank << " of " << tp);
                const Shard shard = load(config, golden_dir(name), rank, tp);
                const ShardDefinition definition(config, rank, ffns);
                for (const WeightTensor& tensor : shard.layout.tensors()) {
                    const std::vector<bf16> whole = stored_tensor(*checkpoint, tensor.name);
                    const auto* mine =
                        reinterpret_cast<const bf16*>(shard.arena.data() + tensor.offset);
                    for (std::int64_t r = 0; r < tensor.rows; ++r) {
                        for (std::int64_t c = 0; c < tensor.cols; ++c) {
                            const std::optional<std::int64_t> element =
                                definition.element(tensor, r, c);
                            const bf16 expected =
                                element ? whole[static_cast<std::size_t>(*element)] : bf16{};
                            ASSERT_EQ(mine[r * tensor.cols + c], expected) << tensor.name;
                        }
                    }
                }
            }
        }
    }
}

// Query head h of the model must read KV head h / (Q / K), whatever the split.
TEST(WeightLayout, EveryQueryHeadFindsItsKvHeadOnItsRank) {
    for (const auto& [num_q, num_kv] :
         std::vector<std::pair<int, int>>{{12, 3}, {8, 2}, {8, 8}, {4, 1}, {24, 6}, {16, 4}}) {
        ModelConfig config = config_of(golden_dir("qwen3_tied"));
        config.num_q_heads = num_q;
        config.num_kv_heads = num_kv;
        for (const int tp : {1, 2, 4}) {
            for (int rank = 0; rank < tp; ++rank) {
                const Result<WeightLayout> layout = layout_of(config, static_cast<Rank>(rank), tp);
                ASSERT_TRUE(layout.has_value());
                const Attention shape(config, 0, {.rank = rank, .tp = tp});
                const WeightTensor* k = layout->find("model.layers.0.self_attn.k_proj.weight");
                std::vector<std::int64_t> heads;
                for (const ShardPart& part : k->parts) {
                    for (std::int64_t i = 0; i < part.rows; i += config.head_dim) {
                        heads.push_back((part.whole_row + i) / config.head_dim);
                    }
                }
                ASSERT_EQ(static_cast<std::int64_t>(heads.size()), shape.num_kv_heads());
                ASSERT_EQ(shape.num_q_heads() % shape.num_kv_heads(), 0);
                for (std::int64_t h = 0; h < shape.num_q_heads(); ++h) {
                    const std::int64_t local = h / (shape.num_q_heads() / shape.num_kv_heads());
                    const std::int64_t global = rank * shape.num_q_heads() + h;
                    EXPECT_EQ(heads[static_cast<std::size_t>(local)], global / (num_q / num_kv));
                }
            }
        }
    }
}

TEST(WeightLayout, RefusesATpThatHeadsDoNotDivide) {
    const Result<WeightLayout> layout =
        layout_of(config_of(golden_dir("qwen2_seven_to_one")), Rank{0}, 4);
    ASSERT_FALSE(layout.has_value());
    EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(layout.error().message.find("14 attention heads"), std::string::npos);
}

TEST(WeightProblems, AreListedAllAtOnce) {
    const std::string directory = golden_dir("qwen3_untied_biased");
    const Result<WeightLayout> layout = layout_of(config_of(directory), Rank{0}, 1);
    std::vector<checkpoint::TensorSpec> specs = specs_of(*checkpoint::Checkpoint::open(directory));
    std::erase_if(specs, [](const checkpoint::TensorSpec& spec) {
        return spec.name == "model.norm.weight";
    });
    for (checkpoint::TensorSpec& spec : specs) {
        if (spec.name == "lm_head.weight") spec.shape = {67, 41};
        if (spec.name == "model.layers.1.mlp.up_proj.weight")
            spec.dtype = checkpoint::StoredDtype::kF8E4m3;
    }
    specs.push_back({.name = "model.layers.2.mlp.up_proj.weight", .shape = {56, 40}});
    specs.push_back(specs.back());
    specs.back().name = "model.embed_tokens.weight";
    specs.back().shape = {67, 40};
    const std::vector<std::string> problems = find_problems(*layout, specs, Completeness::kWhole);
    EXPECT_EQ(problems.size(), 5u);
    const std::string message = error_of("dir", problems).message;
    for (const std::string_view part :
         {"'model.norm.weight' is missing",
          "'lm_head.weight' has shape [67, 41]; the config requires [67, 40]",
          "'model.layers.1.mlp.up_proj.weight' has dtype F8_E4M3",
          "'model.layers.2.mlp.up_proj.weight' is no tensor of this model",
          "appears twice"}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    EXPECT_EQ(find_problems(*layout, specs, Completeness::kPartial).size(), 4u);
}

TEST(WeightProblems, ATiedHeadAndRotaryTablesAreIgnored) {
    const std::string directory = golden_dir("qwen3_tied");
    const Result<WeightLayout> layout = layout_of(config_of(directory), Rank{0}, 1);
    std::vector<checkpoint::TensorSpec> specs = specs_of(*checkpoint::Checkpoint::open(directory));
    specs.push_back({.name = "lm_head.weight", .shape = {67, 40}});
    specs.push_back(
        {.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
         .dtype = checkpoint::StoredDtype::kF32,
         .shape = {6}}
    );
    EXPECT_EQ(find_problems(*layout, specs, Completeness::kWhole), std::vector<std::string>{});
}

TEST(WeightLoader, ConvertsF32AndF16ToTheNearestBf16) {
    // 1 + 2^-8 is half-way between two bf16 values; 1 + 2^-8 + 2^-16 is above that midpoint. The
    // shard has columns 1 to 3.
    const std::vector<float> values{1.00390625f, 1.0039215087890625f, -3.1415927f, 6.1e-5f};
    const WeightTensor tensor{
        .name = "t",
        .shape = {1, 4},
        .whole_rows = 1,
        .whole_cols = 4,
        .parts = {{.rows = 1, .cols = 3, .whole_col = 1, .whole_stride = 4, .shard_stride = 3}},
        .rows = 1,
        .cols = 3,
    };
    std::vector<bf16> arena(3);
    copy_rows({
        .tensor = tensor,
        .dtype = checkpoint::StoredDtype::kF32,
        .src = reinterpret_cast<const std::byte*>(values.data()),
        .num_rows = 1,
        .arena = reinterpret_cast<std::byte*>(arena.data()),
        .ops = *kernels::reference_ops(),
    });
    EXPECT_EQ(to_float(arena[0]), 1.0078125f);
    EXPECT_EQ(to_float(arena[1]), -3.140625f);
    const std::vector<std::uint16_t> halves{
        0x3c00, 0x3c04, 0xc248, 0x0001};  // 1, 1 + 2^-8, -3.14, 2^-24
    copy_rows({
        .tensor = tensor,
        .dtype = checkpoint::StoredDtype::kF16,
        .src = reinterpret_cast<const std::byte*>(halves.data()),
        .num_rows = 1,
        .arena = reinterpret_cast<std::byte*>(arena.data()),
        .ops = *kernels::reference_ops(),
    });
    EXPECT_EQ(to_float(arena[0]), 1.0f);  // the tie is rounded to even
    EXPECT_EQ(to_float(arena[1]), -3.140625f);
    EXPECT_EQ(to_float(arena[2]), 0x1p-24f);
}

// The digest of the version is the same for any tp: the ranks' parts add up.
TEST(WeightDigest, IsTheSameForAnyNumberOfRanks) {
    for (const std::string name :
         {"qwen3_tied",
          "qwen3_untied_biased",
          "qwen3_window",
          "llama_rope_llama3",
          "mistral_window"}) {
        SCOPED_TRACE(name);
        const ModelConfig config = config_of(golden_dir(name));
        std::set<std::string> digests;
        for (const int tp : {1, 2, 4}) {
            std::vector<std::vector<messages::PartDigest>> parts;
            for (int rank = 0; rank < tp; ++rank) {
                const Shard shard = load(config, golden_dir(name), rank, tp);
                Result<std::vector<messages::PartDigest>> digested =
                    digest_weights(shard.layout, shard.arena.data(), *kernels::reference_ops(), {});
                if (!digested) {
                    EXPECT_EQ(digested.error().code, ErrorCode::kUnsupported);
                    EXPECT_GT(tp, 1);
                    break;
                }
                parts.push_back(*std::move(digested));
            }
            if (static_cast<int>(parts.size()) < tp) {
                EXPECT_TRUE(parts.empty());  // either every rank can digest its part, or none
                continue;
            }
            std::vector<messages::RankParts> ranks;
            for (int rank = 0; rank < tp; ++rank) {
                ranks.push_back({static_cast<Rank>(rank), parts[static_cast<std::size_t>(rank)]});
            }
            const Result<messages::VersionDigest> version = messages::version_digest(ranks);
            ASSERT_TRUE(version.has_value()) << version.error().message;
            digests.insert(to_hex(version->digest));
        }
        EXPECT_EQ(digests.size(), 1u);
    }
}

// Every element of an expert is on one rank of the expert's group, and in no other group.
TEST(WeightLayout, TheRanksOfOneGroupHaveAnExpert) {
    for (const std::string name : {"qwen3_moe_every_other", "qwen3_moe_all", "mixtral"}) {
        const ModelConfig config = config_of(golden_dir(name));
        for (const auto& [tp, ep] : std::vector<std::pair<int, int>>{{2, 2}, {4, 2}, {4, 4}}) {
            SCOPED_TRACE(testing::Message() << name << " tp " << tp << " ep " << ep);
            std::map<std::string, std::set<int>> groups;
            std::map<std::string, std::vector<int>> times;  // how often an element is held
            std::vector<messages::RankParts> ranks;
            std::vector<std::vector<messages::PartDigest>> parts;
            for (int rank = 0; rank < tp; ++rank) {
                const Shard shard = load(config, golden_dir(name), rank, tp, ep);
                const auto digested =
                    digest_weights(shard.layout, shard.arena.data(), *kernels::reference_ops(), {});
                // Heads of 10 rows, one per rank, cut the digest's words.
                EXPECT_EQ(digested.has_value(), name != "mixtral" || tp == 2);
                if (digested) parts.push_back(*digested);
                for (const WeightTensor& tensor : shard.layout.tensors()) {
                    if (tensor.name.find(".experts.") == std::string::npos) continue;
                    EXPECT_EQ(tensor.parts.empty(), tensor.bytes() == 0);
                    std::vector<int>& held = times[tensor.name];
                    held.resize(static_cast<std::size_t>(tensor.whole_rows * tensor.whole_cols));
                    for (const ShardPart& part : tensor.parts) {
                        groups[tensor.name].insert(rank / (tp / ep));
                        for (std::int64_t i = 0; i < part.rows * part.cols; ++i) {
                            const std::int64_t at = part.whole_begin() +
                                                    i / part.cols * part.whole_stride +
                                                    i % part.cols;
                            ++held[static_cast<std::size_t>(at)];
                        }
                    }
                }
            }
            EXPECT_FALSE(times.empty());
            std::set<int> used;
            for (const auto& [tensor, held] : times) {
                EXPECT_EQ(groups[tensor].size(), 1u) << tensor;
                used.insert(*groups[tensor].begin());
                EXPECT_EQ(held, std::vector<int>(held.size(), 1)) << tensor;
            }
            EXPECT_EQ(std::ssize(used), ep);
            if (parts.empty()) continue;
            for (int rank = 0; rank < tp; ++rank)
                ranks.push_back({static_cast<Rank>(rank), parts[static_cast<std::size_t>(rank)]});
            const Shard whole = load(config, golden_dir(name), 0, 1);
            const auto of_whole =
                *digest_weights(whole.layout, whole.arena.data(), *kernels::reference_ops(), {});
            const std::vector<messages::RankParts> alone{{Rank{0}, of_whole}};
            const Result<messages::VersionDigest> version = messages::version_digest(ranks);
            ASSERT_TRUE(version) << version.error().message;
            EXPECT_EQ(version->digest, messages::version_digest(alone)->digest);
        }
    }
}

TEST(WeightLayout, RefusesMoreGroupsThanExperts) {
    const auto refusal = [](const std::string& name, int ep) {
        const Result<WeightLayout> layout =
            layout_of(config_of(golden_dir(name)), Rank{0}, ep, ExtraTensors::kRefuse, ep);
        return layout ? std::string() : layout.error().message;
    };
    EXPECT_NE(refusal("qwen3_tied", 2).find("no experts for --ep 2"), std::string::npos);
    EXPECT_NE(refusal("mixtral", 64).find("experts for --ep 64"), std::string::npos);
}

// Equal bytes at other elements are other weights.
TEST(WeightDigest, IsOfADtypeOnWhichRanksAgree) {
    messages::PartDigest part{.name = "w", .shape = {4}, .lane0 = 5, .lane1 = 6};
    const auto digest_of_both = [](const messages::PartDigest& a, const messages::PartDigest& b) {
        const std::vector<messages::PartDigest> first{a};
        const std::vector<messages::PartDigest> second{b};
        const std::vector<messages::RankParts> ranks{{Rank{0}, first}, {Rank{1}, second}};
        return messages::version_digest(ranks);
    };
    messages::PartDigest named = part;
    named.dtype = "BF16";
    messages::PartDigest other = part;
    other.dtype = "F32";
    ASSERT_TRUE(digest_of_both(part, named));  // an absent dtype means BF16
    EXPECT_EQ(digest_of_both(part, named)->tensors[0].dtype, "BF16");
    ASSERT_TRUE(digest_of_both(other, other));
    EXPECT_EQ(digest_of_both(other, other)->tensors[0].dtype, "F32");
    EXPECT_NE(digest_of_both(part, part)->digest, digest_of_both(other, other)->digest);
    const auto refused = digest_of_both(part, other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kDataLoss);
    EXPECT_NE(refused.error().message.find("ranks 0 and 1"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::tp_worker
