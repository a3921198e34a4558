// Tensors that contain several weights, in both forms.
#include "tp_worker/weights/unpack.h"

#include "tests/checkpoint/safetensors_file.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tp_worker/weights/checkpoint_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

Result<WeightLayout> layout_of_mixtral() {
    ASSIGN_OR_RETURN(
        const ModelConfig config, ModelConfig::read(source_dir() + "/tests/data/golden/mixtral")
    );
    return layout_of(config, Rank{0}, 1);
}

// The form of transformers' own modules: one tensor has all experts of a layer, gate above up.
TEST(PackedWeights, StandForTheWeightsThatTheyHold) {
    const Result<WeightLayout> layout = layout_of_mixtral();
    ASSERT_TRUE(layout.has_value());
    const std::string prefix = "model.layers.1.";
    const std::string packed = prefix + "mlp.experts.gate_up_proj";
    const auto spec = [&](const std::string& name, std::vector<std::int64_t> shape) {
        return checkpoint::TensorSpec{.name = name, .shape = std::move(shape)};
    };
    const auto problems = [&](std::vector<checkpoint::TensorSpec> offered) {
        return find_problems(*layout, offered, Completeness::kPartial);
    };
    const std::vector<std::int64_t> shape{4, 72, 40};
    EXPECT_EQ(problems({spec(packed, shape)}), std::vector<std::string>{});
    EXPECT_EQ(problems({spec(packed, {4, 40, 72})}), std::vector<std::string>{});
    EXPECT_NE(problems({spec(packed, {4, 72, 41})}).at(0).find("[4, 72, 40]"), std::string::npos);
    EXPECT_NE(problems({spec(packed, {})}).at(0).find("[4, 72, 40]"), std::string::npos);
    const std::string one = prefix + "block_sparse_moe.experts.3.w3.weight";
    const std::vector<std::string> twice = problems({spec(packed, shape), spec(one, {36, 40})});
    ASSERT_EQ(twice.size(), 1u);
    EXPECT_NE(twice[0].find(one), std::string::npos) << twice[0];

    const std::vector<Incoming> parts = unpacked(*layout, spec(packed, shape), {}, nullptr);
    ASSERT_EQ(parts.size(), 8u);
    EXPECT_EQ(parts[7].spec.name, one);
    EXPECT_EQ(parts[7].spec.shape, (std::vector<std::int64_t>{36, 40}));
    EXPECT_EQ(parts[2].spec.name, prefix + "block_sparse_moe.experts.1.w1.weight");
    EXPECT_TRUE(unpacked(*layout, spec(packed, {4, 72, 41}), {}, nullptr).empty());
    EXPECT_TRUE(unpacked(*layout, spec(one, {36, 40}), {}, nullptr).empty());
}

// Each weight of a pack, in both forms, in memory or read from a file.
TEST(PackedWeights, AreTheSameOfATransposedPack) {
    const Result<WeightLayout> layout = layout_of_mixtral();
    ASSERT_TRUE(layout.has_value());
    constexpr std::int64_t kExperts = 4;
    const std::string prefix = "model.layers.0.mlp.experts.";
    for (const auto& [name, rows, cols] :
         {std::tuple("gate_up_proj", 72, 40), std::tuple("down_proj", 40, 36)}) {
        for (const auto dtype : {checkpoint::StoredDtype::kBf16, checkpoint::StoredDtype::kF32}) {
            SCOPED_TRACE(testing::Message() << name << " " << checkpoint::name_of(dtype));
            const std::int64_t size = checkpoint::bytes_of(dtype);
            std::vector<std::byte> plain;
            std::vector<std::byte> swapped(static_cast<std::size_t>(kExperts * rows * cols * size));
            for (std::int64_t i = 0; i < kExperts * rows * cols; ++i) {
                const std::int64_t expert = i / (rows * cols);
                const std::int64_t row = i / cols % rows;
                const std::int64_t at = expert * rows * cols + i % cols * rows + row;
                for (std::int64_t b = 0; b < size; ++b) {
                    plain.push_back(static_cast<std::byte>(b == 0 ? i : i >> 8));
                    swapped[static_cast<std::size_t>(at * size + b)] = plain.back();
                }
            }
            const auto weights_of = [&](std::vector<std::int64_t> shape, const TensorBytes& bytes) {
                return unpacked(*layout, {prefix + name, dtype, std::move(shape)}, bytes, nullptr);
            };
            const std::vector<Incoming> expected =
                weights_of({kExperts, rows, cols}, {.dtype = dtype, .data = plain.data()});
            const auto read = [&](std::int64_t begin, std::span<std::byte> out) -> Result<> {
                std::copy_n(swapped.begin() + begin, out.size(), out.begin());
                return Ok{};
            };
            for (const bool is_read : {false, true}) {
                const std::vector<Incoming> weights = weights_of(
                    {kExperts, cols, rows},
                    {.dtype = dtype,
                     .data = is_read ? nullptr : swapped.data(),
                     .read = is_read ? read : decltype(TensorBytes::read)()}
                );
                ASSERT_EQ(weights.size(), expected.size());
                for (std::size_t w = 0; w < weights.size(); ++w) {
                    EXPECT_EQ(weights[w].spec.name, expected[w].spec.name);
                    EXPECT_EQ(weights[w].spec.shape, expected[w].spec.shape);
                    const std::int64_t row_bytes = weights[w].spec.shape[1] * size;
                    const std::int64_t num_rows = weights[w].spec.shape[0];
                    for (std::int64_t row = 0; row < num_rows; row += 5) {
                        std::vector<std::byte> some(static_cast<std::size_t>(
                            std::min<std::int64_t>(5, num_rows - row) * row_bytes
                        ));
                        ASSERT_TRUE(weights[w].bytes.read(row * row_bytes, some));
                        EXPECT_TRUE(std::ranges::equal(
                            some, std::span(expected[w].bytes.data + row * row_bytes, some.size())
                        )) << weights[w].spec.name
                           << " row " << row;
                    }
                }
            }
        }
    }
}

TEST(PackedWeights, ATransposedPackInAGpusMemoryIsAProblem) {
    const Result<WeightLayout> layout = layout_of_mixtral();
    ASSERT_TRUE(layout.has_value());
    const std::string name = "model.layers.0.mlp.experts.down_proj";
    const auto problems = [&](std::vector<std::int64_t> shape, bool is_on_gpu) {
        const std::vector<Incoming> tensors{
            {.spec = {.name = name, .shape = std::move(shape)}, .bytes = {.is_on_gpu = is_on_gpu}}};
        return scattered_on_gpu(*layout, tensors);
    };
    EXPECT_EQ(problems({4, 40, 36}, true), std::vector<std::string>{});
    EXPECT_EQ(problems({4, 36, 40}, false), std::vector<std::string>{});
    const std::vector<std::string> refused = problems({4, 36, 40}, true);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_NE(
        refused[0].find("'" + name + "' has shape [4, 36, 40], transposed"), std::string::npos
    );
}

// A pack [3, 4] of two weights [3, 2]: the columns alternate, and one weight's rows go upwards.
TEST(PackedWeights, MayHaveStrides) {
    WeightSlots slots;
    const WeightId a = slots.add({.name = "a", .shape = {3, 2}, .encoding = Encoding::kF32});
    const WeightId b = slots.add({.name = "b", .shape = {3, 2}, .encoding = Encoding::kF32});
    slots.pack(
        {.name = "both",
         .shape = {3, 4},
         .slots = {a, b},
         .strides =
             {{.begin = 0, .per_row = 4, .per_col = 2}, {.begin = 9, .per_row = -4, .per_col = 2}}}
    );
    const Result<WeightLayout> layout = WeightLayout::make(slots);
    ASSERT_TRUE(layout.has_value());
    const checkpoint::TensorSpec spec{
        .name = "both", .dtype = checkpoint::StoredDtype::kF32, .shape = {3, 4}};
    const std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const std::vector<std::vector<float>> expected{{0, 2, 4, 6, 8, 10}, {9, 11, 5, 7, 1, 3}};
    const auto* const data = reinterpret_cast<const std::byte*>(values.data());
    TensorBytes in_memory{.dtype = spec.dtype, .data = data};
    TensorBytes in_file{.dtype = spec.dtype};
    in_file.read = [data](std::int64_t begin, std::span<std::byte> out) -> Result<> {
        std::copy_n(data + begin, out.size(), out.begin());
        return Ok{};
    };
    const auto kept = std::make_shared<OrderedPacks>();
    for (const TensorBytes& bytes : {in_memory, in_file}) {
        const std::vector<Incoming> weights = unpacked(*layout, spec, bytes, kept);
        ASSERT_EQ(weights.size(), 2u);
        for (std::size_t w = 0; w < 2; ++w) {
            std::vector<float> read(4);  // rows 1 and 2
            ASSERT_TRUE(weights[w].bytes.read(8, std::as_writable_bytes(std::span(read))));
            EXPECT_TRUE(std::ranges::equal(read, std::span(expected[w]).subspan(2))) << w;
        }
    }
    in_file.read = [](std::int64_t, std::span<std::byte>) -> Result<> {
        return Error{ErrorCode::kDataLoss, "the file is cut"};
    };
    std::vector<std::byte> out(8);
    EXPECT_FALSE(unpacked(*layout, spec, in_file, kept)[0].bytes.read(0, out));
    const std::vector<Incoming> on_gpu{{.spec = spec, .bytes = {.is_on_gpu = true}}};
    EXPECT_NE(scattered_on_gpu(*layout, on_gpu).at(0).find("'both' contains"), std::string::npos);
}

constexpr std::size_t kNumPacks = OrderedPacks::kKeptMax + 1;

// A pack [4, 2] of one weight whose rows follow one another and one by columns.
class CopiesOfPacks : public testing::Test {
  protected:
    void SetUp() override {
        const WeightId a = slots_.add({.name = "a", .shape = {2, 2}, .encoding = Encoding::kF32});
        const WeightId b = slots_.add({.name = "b", .shape = {2, 2}, .encoding = Encoding::kF32});
        slots_.pack(
            {.name = "both",
             .shape = {4, 2},
             .slots = {a, b},
             .strides =
                 {{.begin = 0, .per_row = 2, .per_col = 1},
                  {.begin = 4, .per_row = 1, .per_col = 2}}}
        );
    }
    std::vector<Incoming> read_by(decltype(TensorBytes::read) read) {
        if (!layout_) layout_.emplace(WeightLayout::make(slots_));
        TensorBytes bytes{.dtype = kSpec.dtype};
        bytes.read = std::move(read);
        return unpacked(**layout_, kSpec, bytes, kept_);
    }

    const checkpoint::TensorSpec kSpec{
        .name = "both", .dtype = checkpoint::StoredDtype::kF32, .shape = {4, 2}};
    WeightSlots slots_{};
    std::optional<Result<WeightLayout>> layout_{};
    std::shared_ptr<OrderedPacks> kept_ = std::make_shared<OrderedPacks>();
};

TEST_F(CopiesOfPacks, OnlyThoseThatWereReadLastStay) {
    std::vector<std::vector<Incoming>> packs;
    int num_reads = 0;
    for (int i = 0; i < 7; ++i) {
        packs.push_back(read_by([i, &num_reads](std::int64_t begin, std::span<std::byte> out) {
            ++num_reads;
            for (std::size_t at = 0; at < out.size(); at += sizeof(float)) {
                const float value =
                    static_cast<float>(i * 8 + begin / 4) + static_cast<float>(at) / 4;
                std::memcpy(&out[at], &value, sizeof value);
            }
            return Result<>(Ok{});
        }));
    }
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < packs.size(); ++i) {
            std::vector<float> b(4);
            ASSERT_TRUE(packs[i][1].bytes.read(0, std::as_writable_bytes(std::span(b))));
            const auto first = static_cast<float>(i * 8);
            EXPECT_EQ(b, (std::vector<float>{first + 4, first + 6, first + 5, first + 7}));
            EXPECT_LE(kept_->num_bytes(), OrderedPacks::kKeptMax * 4 * sizeof(float));
        }
    }
    EXPECT_EQ(num_reads, 14) << "one for each of the two rounds";
    std::vector<float> b(4);
    ASSERT_TRUE(packs[6][1].bytes.read(0, std::as_writable_bytes(std::span(b))));
    EXPECT_EQ(num_reads, 14) << "the second read uses the copy";
}

// The tensors of one call share the bound.
TEST_F(CopiesOfPacks, OnlyThoseOfACallThatWereReadLastStay) {
    read_by({});  // makes the layout
    std::size_t num_reads = 0;
    TensorBytes bytes{.dtype = kSpec.dtype};
    bytes.read = [&num_reads](std::int64_t, std::span<std::byte>) {
        ++num_reads;
        return Result<>(Ok{});
    };
    const std::vector<Incoming> call(kNumPacks, Incoming{.spec = kSpec, .bytes = bytes});
    const std::vector<Incoming> weights = unpacked(**layout_, call);
    ASSERT_EQ(weights.size(), 2 * kNumPacks);
    std::vector<std::byte> row(8);
    for (std::size_t i = 0; i < kNumPacks; ++i) ASSERT_TRUE(weights[2 * i + 1].bytes.read(0, row));
    EXPECT_EQ(num_reads, kNumPacks);
    ASSERT_TRUE(weights.back().bytes.read(0, row));
    EXPECT_EQ(num_reads, kNumPacks) << "the last copy stays";
    ASSERT_TRUE(weights[1].bytes.read(0, row));
    EXPECT_EQ(num_reads, kNumPacks + 1) << "the first one does not";
}

// The tensors of one checkpoint share the bound. The file is gone when they are read again.
TEST_F(CopiesOfPacks, OnlyThoseOfACheckpointThatWereReadLastStay) {
    WeightSlots slots;
    test::SafetensorsFile file;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kNumPacks; ++i) {
        names.push_back("model." + std::to_string(i));
        const WeightId weight =
            slots.add({.name = names.back(), .shape = {2, 2}, .encoding = Encoding::kF32});
        slots.pack(
            {.name = names.back() + ".pack",
             .shape = {2, 2},
             .slots = {weight},
             .strides = {{.begin = 0, .per_row = 1, .per_col = 2}}}
        );
        file.add(names.back() + ".pack", "F32", {2, 2}, std::string(16, 'x'));
    }
    const test::TempDir dir;
    file.write(dir);
    const auto layout = WeightLayout::make(slots);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    const auto checkpoint = checkpoint::Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const CheckpointTensors tensors(*layout, *checkpoint);
    const auto reads = [&](const std::string& name) {
        std::vector<std::byte> row(8);
        return tensors.bytes_for(name).read(0, row).has_value();
    };
    for (const std::string& name : names) ASSERT_TRUE(reads(name)) << name;
    dir.truncate("model.safetensors", 0);
    EXPECT_TRUE(reads(names.back())) << "the last copy stays";
    EXPECT_FALSE(reads(names.front())) << "the first one does not";
}

TEST_F(CopiesOfPacks, AWeightWhoseRowsFollowOneAnotherNeedsNone) {
    std::int64_t first = -1;
    const std::vector<Incoming> weights =
        read_by([&first](std::int64_t begin, std::span<std::byte> out) {
            first = begin + std::ssize(out) * 1000;
            return Result<>(Ok{});
        });
    std::vector<std::byte> row(8);
    ASSERT_TRUE(weights[0].bytes.read(8, row));
    EXPECT_EQ(first, 8008) << "of the pack, only this row";
    EXPECT_EQ(kept_->num_bytes(), 0u);
}

TEST_F(CopiesOfPacks, WithoutMemoryTheReadFails) {
    const std::vector<Incoming> weights =
        read_by([](std::int64_t, std::span<std::byte>) -> Result<> { throw std::bad_alloc(); });
    std::vector<std::byte> row(8);
    const Result<> read = weights[1].bytes.read(0, row);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pitstop::tp_worker
