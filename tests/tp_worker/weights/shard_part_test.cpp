// The rectangles of a layout, compared with the definition of a shard element by element.
#include "messages/codec.h"
#include "messages/weight_reads.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/weights/shard_definition.h"
#include "tp_worker/weights/tensor_read.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kNone = -1;  // no element of the whole tensor

struct Split {
    ModelConfig config{};
    int tp = 1;
    std::vector<WeightLayout> layouts{};  // by rank

    [[nodiscard]] ShardDefinition definition(std::size_t rank) const {
        std::vector<std::int64_t> ffns;
        for (const WeightLayout& layout : layouts)
            ffns.push_back(layout.find("model.layers.0.mlp.gate_proj.weight")->rows);
        EXPECT_EQ(std::accumulate(ffns.begin(), ffns.end(), std::int64_t{0}), config.ffn);
        return {config, static_cast<std::int64_t>(rank), ffns};
    }
};

// Models of every form that splits: KV heads that tp divides, KV heads that it does not divide,
// fewer KV heads than ranks; FFNs and vocabularies that it does not divide; with every bias and
// norm, or none.
Split random_split(std::mt19937& random) {
    const auto pick = [&](std::initializer_list<std::int64_t> values) {
        return values.begin()[random() % values.size()];
    };
    Split split;
    ModelConfig& config = split.config;
    config.num_layers = 1;
    config.layers = {kDenseLayer};
    config.head_dim = pick({2, 4, 6, 8});
    config.num_kv_heads = pick({1, 2, 3, 4});
    config.num_q_heads = config.num_kv_heads * pick({1, 2, 3, 4, 6});
    config.hidden = pick({4, 7, 12});
    config.ffn = pick({32, 37, 44, 61});
    config.vocab_len = pick({5, 16, 33});
    config.tied_embeddings = pick({0, 1}) != 0;
    config.qkv_bias = config.o_bias = config.mlp_bias = pick({0, 1}) != 0;
    config.qk_norm = pick({0, 1}) != 0;
    do {
        split.tp = static_cast<int>(pick({1, 2, 3, 4, 6, 8}));
    } while (config.num_q_heads % split.tp != 0);
    for (int rank = 0; rank < split.tp; ++rank) {
        Result<WeightLayout> layout = layout_of(config, static_cast<Rank>(rank), split.tp);
        EXPECT_TRUE(layout.has_value()) << layout.error().message;
        split.layouts.push_back(*std::move(layout));
    }
    return split;
}

std::string name_of(const Split& split, std::size_t rank, const WeightTensor& tensor) {
    return fmt::format(
        "{} rank {} of {}: Q {} K {} D {} F {} V {}",
        tensor.name,
        rank,
        split.tp,
        split.config.num_q_heads,
        split.config.num_kv_heads,
        split.config.head_dim,
        split.config.ffn,
        split.config.vocab_len
    );
}

std::vector<std::int64_t> defined_shard(const ShardDefinition& definition, const WeightTensor& t) {
    std::vector<std::int64_t> shard;
    for (std::int64_t row = 0; row < t.rows; ++row) {
        for (std::int64_t col = 0; col < t.cols; ++col)
            shard.push_back(definition.element(t, row, col).value_or(kNone));
    }
    return shard;
}

// Writes the indices of the whole tensor's elements to their places in the shard, by the rectangle.
void scatter(const ShardPart& part, std::vector<std::int64_t>& shard) {
    for (std::int64_t r = 0; r < part.rows; ++r) {
        for (std::int64_t c = 0; c < part.cols; ++c) {
            const std::int64_t at = part.shard_begin() + r * part.shard_stride + c;
            std::int64_t& element = shard.at(static_cast<std::size_t>(at));
            EXPECT_EQ(element, kNone) << "two rectangles write element " << at;
            element = part.whole_begin() + r * part.whole_stride + c;
        }
    }
}

template <class F>
void for_each_tensor(F check) {
    std::mt19937 random(5);
    for (int i = 0; i < 200; ++i) {
        const Split split = random_split(random);
        for (std::size_t rank = 0; rank < split.layouts.size(); ++rank) {
            const ShardDefinition definition = split.definition(rank);
            for (const WeightTensor& tensor : split.layouts[rank].tensors()) {
                SCOPED_TRACE(name_of(split, rank, tensor));
                check(tensor, defined_shard(definition, tensor), random);
                if (testing::Test::HasFailure()) return;
            }
        }
    }
}

TEST(ShardPart, PutsEveryElementWhereTheDefinitionHasIt) {
    for_each_tensor([](const WeightTensor& tensor, const auto& expected, auto&) {
        std::vector<std::int64_t> shard(expected.size(), kNone);
        for (const ShardPart& part : tensor.parts) scatter(part, shard);
        EXPECT_EQ(shard, expected);
    });
}

// The pieces of rows cover the whole tensor, and each element of the shard once, for any cut.
TEST(ShardPart, CutIntoRowsIsTheSameElements) {
    for_each_tensor([](const WeightTensor& tensor, const auto& expected, std::mt19937& random) {
        std::vector<std::int64_t> by_shard_rows(expected.size(), kNone);
        for (std::int64_t row = 0; row < tensor.rows;) {
            const auto num = static_cast<std::int64_t>(1 + random() % 9);
            for (const ShardPart& part : tensor.parts) {
                const ShardPart cut = part.in_shard_rows(row, num);
                if (cut.is_empty()) continue;
                EXPECT_GE(cut.shard_row, row);
                EXPECT_LE(cut.shard_row + cut.rows, row + num);
                scatter(cut, by_shard_rows);
            }
            row += num;
        }
        EXPECT_EQ(by_shard_rows, expected);

        std::vector<std::int64_t> by_whole_rows(expected.size(), kNone);
        for (std::int64_t row = 0; row < tensor.whole_rows;) {
            const auto num = static_cast<std::int64_t>(1 + random() % 9);
            for (const ShardPart& part : tensor.parts) {
                const ShardPart cut = part.in_whole_rows(row, num);
                if (cut.is_empty()) continue;
                EXPECT_GE(cut.whole_row, row);
                EXPECT_LE(cut.whole_row + cut.rows, row + num);
                scatter(cut, by_whole_rows);
            }
            row += num;
        }
        EXPECT_EQ(by_whole_rows, expected);
    });
}

// The number of an element as bf16 bits: distinct within a tensor of fewer than 2^16 elements.
std::vector<bf16> numbered(const WeightTensor& tensor) {
    std::vector<bf16> whole;
    for (std::int64_t i = 0; i < tensor.whole_rows * tensor.whole_cols; ++i)
        whole.push_back(bf16{static_cast<std::uint16_t>(i)});
    return whole;
}

// Loads from a source in memory, and from a source that is read piece by piece.
TEST(ShardPart, LoadingFillsTheShardThatIsDefined) {
    for_each_tensor([](const WeightTensor& tensor, const auto& expected, std::mt19937& random) {
        const std::vector<bf16> whole = numbered(tensor);
        const auto bytes = std::as_bytes(std::span(whole));
        WeightTensor at_start = tensor;
        at_start.offset = 0;
        for (const bool is_mapped : {true, false}) {
            TensorBytes source{.dtype = checkpoint::StoredDtype::kBf16};
            if (is_mapped) source.data = bytes.data();
            source.read = [&](std::int64_t begin, std::span<std::byte> out) -> Result<> {
                std::ranges::copy(
                    bytes.subspan(static_cast<std::size_t>(begin), out.size()), out.begin()
                );
                return Ok{};
            };
            const auto garbage = static_cast<std::uint16_t>(random());
            std::vector<bf16> shard(expected.size(), bf16{garbage});
            std::vector<std::byte> scratch;
            const Result<> loaded = load_tensor(
                {.tensor = at_start,
                 .bytes = source,
                 .ops = *kernels::reference_ops(),
                 .arena = reinterpret_cast<std::byte*>(shard.data())},
                scratch,
                [](const WrittenRows&) { return Result<>(Ok{}); }
            );
            ASSERT_TRUE(loaded.has_value());
            for (std::size_t i = 0; i < expected.size(); ++i) {
                const bool is_padding = expected[i] == kNone;
                const auto bits = static_cast<std::uint16_t>(is_padding ? garbage : expected[i]);
                ASSERT_EQ(shard[i].bits, bits) << "element " << i << " of the shard";
            }
        }
    });
}

// Each element that is read back names its place in the whole tensor.
TEST(ShardPart, ReadingBackReturnsEveryElementUnderItsOwnPlace) {
    for_each_tensor([](const WeightTensor& tensor, const auto& expected, auto&) {
        WeightTensor at_start = tensor;
        at_start.offset = 0;
        std::vector<bf16> shard;
        for (const std::int64_t element : expected)
            shard.push_back(bf16{static_cast<std::uint16_t>(element)});
        Result<Arena> arena = Arena::reserve("read back", tensor.bytes());
        ASSERT_TRUE(arena && arena->commit());
        std::memcpy(arena->data(), shard.data(), shard.size() * sizeof(bf16));
        std::size_t num_read = 0;
        for (const messages::Frames& frames : read_parts(at_start, *arena, {})) {
            const Result<messages::WorkerTensor> read =
                decode<messages::WorkerTensor>(frames, messages::UnknownFields::kRefuse);
            ASSERT_TRUE(read.has_value()) << read.error().message;
            for (std::int64_t r = 0; r < read->num_rows; ++r) {
                for (std::int64_t c = 0; c < read->num_cols; ++c, ++num_read) {
                    std::uint16_t bits = 0;
                    const auto at = static_cast<std::size_t>(r * read->num_cols + c);
                    std::memcpy(&bits, read->data.values.data() + at * sizeof bits, sizeof bits);
                    const std::int64_t element =
                        (read->row_begin + r) * tensor.whole_cols + read->col_begin + c;
                    ASSERT_EQ(bits, static_cast<std::uint16_t>(element));
                }
            }
        }
        const auto num_padding = std::ranges::count(expected, kNone);
        EXPECT_EQ(num_read, expected.size() - static_cast<std::size_t>(num_padding));
    });
}

}  // namespace
}  // namespace pitstop::tp_worker
