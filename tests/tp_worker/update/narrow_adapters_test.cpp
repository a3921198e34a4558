// Adapters whose numbers are all bf16 numbers. On a CPU they are resident in half of the memory,
// and are otherwise the adapters that they were in fp32.
#include "base/bf16.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/update/mixture_adapters_fixture.h"
#include "tp_worker/update/adapter_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

const std::string kDense = "qwen3_tied/all";
const std::string kOfExperts = "mixtral/experts";
const std::string kQ0 = "model.layers.0.self_attn.q_proj.lora_B.weight";
constexpr float kNotBf16 = 0.1F;

class NarrowAdapters : public MixtureAdapters {
  protected:
    // The tensors of an adapter's file, rounded to bf16.
    static Tensors rounded(const std::string& name) {
        Tensors tensors = tensors_of(name);
        for (auto& [key, tensor] : tensors) {
            for (float& value : tensor.values) value = to_float(to_bf16(value));
        }
        return tensors;
    }
    Digest stage_whole(const Tensors& tensors) {
        votes_ = stage(with_config_of(kDense, tensors));
        return digest_of(votes_);
    }
    // Elements of kQ0, changed in a version.
    Digest stage_element(messages::AdapterId base, std::int32_t index, float value) {
        messages::UpdateSpec spec;
        spec.adapter = "one";
        spec.partial = true;
        spec.base_digest = std::string(32, 'a');  // the scheduler has compared it
        spec.source.kind = messages::SourceKind::kTensors;
        spec.source.format = messages::TensorFormat::kSparse;
        spec.source.tensors.push_back(
            {.name = kQ0, .dtype = "F32", .shape = tensors_of(kDense).at(kQ0).shape}
        );
        spec.source.num_updates = {1};
        messages::RankPayload payload;
        payload.data.values.resize(sizeof index + sizeof value);
        std::memcpy(payload.data.values.data(), &index, sizeof index);
        std::memcpy(payload.data.values.data() + sizeof index, &value, sizeof value);
        spec.source.payloads.push_back(std::move(payload));
        votes_ = stage(std::move(spec), base);
        return digest_of(votes_);
    }
    Digest stage_rollback(messages::AdapterId base) {
        messages::UpdateSpec spec;
        spec.adapter = "one";
        spec.partial = true;
        votes_ = stage(std::move(spec), base, /*is_rollback=*/true);
        return digest_of(votes_);
    }
    const Adapter& adapter(int rank, messages::AdapterId id) {
        return *replica_->engine(rank).adapters().find(id);
    }
    void expect_encoding(messages::AdapterId id, Encoding encoding) {
        for (int rank = 0; rank < kRanksMax; ++rank)
            EXPECT_EQ(adapter(rank, id).encoding(), encoding) << "rank " << rank;
    }
    // A copy of a version that is resident in fp32, whatever its numbers are.
    messages::AdapterId widened(const std::string& name, messages::AdapterId id) {
        const messages::AdapterId copy{static_cast<std::uint64_t>(id) + 1000};
        for (int rank = 0; rank < kRanksMax; ++rank) {
            Engine& engine = replica_->engine(rank);
            const auto config = AdapterConfig::parse(
                text_of(load_json(adapter_dir(name) + "/adapter_config.json")), "it"
            );
            ModuleSearch search(*config);
            auto wide = engine.make_adapter(search);
            EXPECT_TRUE(wide && (*wide)->allocate());
            (*wide)->copy(adapter(rank, id));
            engine.adapters().add(copy, *std::move(wide));
        }
        expect_encoding(copy, Encoding::kF32);
        return copy;
    }
    void move(const messages::WorkerAdapters& order) {
        for (const auto& updater : updaters_) ASSERT_TRUE(updater->handle_order(encode(order)));
    }
    void restore(messages::AdapterId id) {
        for (const auto& updater : updaters_) {
            const auto answer = tp_worker::ask<messages::WorkerRestored>(
                *updater, messages::WorkerAdapters{.restore = {id}}
            );
            ASSERT_TRUE(answer);
            EXPECT_TRUE(answer->verdict.is_done()) << answer->verdict.message;
        }
    }
    void limit() {
        for (const auto& updater : updaters_)
            updater->adapters().limit({.bytes_max = 16 << 20, .directory = testing::TempDir()});
    }

    std::vector<messages::WorkerStaged> votes_{};  // of the last stage
};

TEST_F(NarrowAdapters, OfBf16NumbersTakeHalfOfTheMemoryAndOneOtherNumberTakesAll) {
    ASSERT_TRUE(open_groups("qwen3_tied", kRanksMax, 1));
    Tensors tensors = rounded(kDense);
    stage_whole(tensors);
    const messages::AdapterId narrow = commit();
    expect_encoding(narrow, Encoding::kBf16);
    for (int rank = 0; rank < kRanksMax; ++rank) {
        EXPECT_EQ(
            votes_[static_cast<std::size_t>(rank)].adapter_bytes, adapter_bytes(rank, narrow)
        );
    }
    // The first element of a B that is split is on rank 0 alone.
    tensors.at(kQ0).values.front() = kNotBf16;
    stage_whole(tensors);
    const messages::AdapterId wide = commit();
    EXPECT_EQ(adapter(0, wide).encoding(), Encoding::kF32);
    const std::int64_t layout_bytes = adapter(0, wide).layout().bytes();
    EXPECT_EQ(adapter(0, wide).tensor_bytes(), layout_bytes);
    EXPECT_EQ(adapter(0, narrow).tensor_bytes(), layout_bytes / 2);
    EXPECT_LT(adapter_bytes(0, narrow), adapter_bytes(0, wide));
    if (kRanksMax > 1) {
        EXPECT_EQ(adapter(1, wide).encoding(), Encoding::kBf16);
    }
}

// P6: also beside requests of an fp32 adapter, and of the model alone.
TEST_F(NarrowAdapters, P6_TheBitsAreThoseOfTheSameAdapterInFp32) {
    for (const auto& [name, ep] : {std::pair{kDense, 1}, {kOfExperts, 1}, {kOfExperts, 2}}) {
        for (const Compute compute : {Compute::kFp32, Compute::kBf16}) {
            SCOPED_TRACE(name);
            const std::string model = name.substr(0, name.find('/'));
            ASSERT_TRUE(open_groups(model, kRanksMax, std::min(ep, kRanksMax), compute));
            digest_of(stage(with_config_of(name, rounded(name))));
            const messages::AdapterId narrow = commit();
            expect_encoding(narrow, Encoding::kBf16);
            const messages::AdapterId wide = widened(name, narrow);
            const std::vector<float> logits = logits_of(kPrompt, narrow);
            EXPECT_EQ(logits, logits_of(kPrompt, wide));
            EXPECT_NE(logits, logits_of(kPrompt, std::nullopt));
            digest_of(stage(from_disk(adapter_dir(name))));
            const messages::AdapterId other = commit();
            EXPECT_EQ(adapter(0, other).encoding(), Encoding::kF32);
            expect_bits_of_each_alone({narrow, std::nullopt, other, wide, narrow});
        }
    }
}

// The digest is that of the fp32 numbers: it does not tell how a version is resident.
TEST_F(NarrowAdapters, P10_APartOfOneGivesTheDigestOfTheWhole) {
    ASSERT_TRUE(open_groups("qwen3_tied", kRanksMax, 1));
    limit();
    Tensors tensors = rounded(kDense);
    const float before = tensors.at(kQ0).values.front();
    const Digest digest = stage_whole(tensors);
    const messages::AdapterId narrow = commit();
    tensors.at(kQ0).values.front() = kNotBf16;
    const Digest changed = stage_whole(tensors);
    const std::vector<float> logits = logits_of(kPrompt, commit());
    EXPECT_NE(changed, digest);

    EXPECT_EQ(stage_element(narrow, 0, kNotBf16), changed);
    const messages::AdapterId wide = commit();
    EXPECT_EQ(adapter(0, wide).encoding(), Encoding::kF32);
    EXPECT_EQ(logits_of(kPrompt, wide), logits);
    EXPECT_EQ(stage_element(wide, 0, before), digest);
    expect_encoding(commit(), Encoding::kBf16);

    // Of a version that is in its file.
    move({.evict = {narrow}});
    EXPECT_EQ(stage_element(narrow, 0, kNotBf16), changed);
    EXPECT_EQ(logits_of(kPrompt, commit()), logits);
    EXPECT_EQ(stage_rollback(narrow), digest);
    expect_encoding(commit(), Encoding::kBf16);
}

TEST_F(NarrowAdapters, P6_ARestoredOneHasTheBitsAndTheMemoryThatItHad) {
    ASSERT_TRUE(open_groups("qwen3_tied", kRanksMax, 1));
    limit();
    const Digest digest = stage_whole(rounded(kDense));
    const messages::AdapterId id = commit();
    const std::vector<float> logits = logits_of(kPrompt, id);
    const std::int64_t bytes = adapter_bytes(0, id);
    for (int i = 0; i < 2; ++i) {  // the second time the file exists already
        move({.evict = {id}});
        restore(id);
        expect_encoding(id, Encoding::kBf16);
        EXPECT_EQ(adapter_bytes(0, id), bytes);
        EXPECT_EQ(logits_of(kPrompt, id), logits);
    }
    EXPECT_EQ(stage_rollback(id), digest);
}

// --keep-committed writes fp32, from memory and from the file of an evicted version.
TEST_F(NarrowAdapters, TheKeeperReadsFp32) {
    ASSERT_TRUE(open_groups("qwen3_tied", 1, 1));
    stage_whole(rounded(kDense));
    const std::shared_ptr<Adapter> narrow = replica_->root().adapters().take_out(commit());
    ASSERT_EQ(narrow->encoding(), Encoding::kBf16);
    std::vector<std::byte> expected(static_cast<std::size_t>(narrow->layout().bytes()));
    narrow->fetch(0, expected);
    const test::TempDir dir;
    const auto file = std::make_shared<AdapterFile>();
    ASSERT_TRUE(file->write(
        dir.path(),
        narrow->tensor_bytes(),
        [&](std::int64_t begin, std::span<std::byte> out) { narrow->memory().fetch(begin, out); }
    ));
    const WeightTensor& q0 = *narrow->layout().find(kQ0);
    float first = 0;
    std::memcpy(&first, expected.data() + q0.offset, sizeof first);
    EXPECT_EQ(first, rounded(kDense).at(kQ0).values.front());
    AdapterBytes bytes(narrow);
    for (const bool is_evicted : {false, true}) {
        if (is_evicted) bytes.leave_memory(file);
        for (const std::size_t begin : {std::size_t{0}, std::size_t{4}, expected.size() / 8 * 4}) {
            std::vector<std::byte> read(expected.size() - begin, std::byte{0x55});
            ASSERT_TRUE(bytes.read(static_cast<std::int64_t>(begin), read));
            EXPECT_TRUE(std::ranges::equal(read, std::span(expected).subspan(begin))) << begin;
        }
    }
}

}  // namespace
}  // namespace pitstop::tp_worker
