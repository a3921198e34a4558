// Updates on a GPU or, in the emulated preset, on a GPU in software: a scheduler's orders, and
// their results. The expected digests are the CPU's.
#include "messages/version_digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/update/stored_tensors.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

namespace pitstop::tp_worker {
namespace {

class GpuUpdater : public OneRankUpdaterTest {
  protected:
    void SetUp() override {
        if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << why_no_gpu();
        open_gpu();
    }
    void open_gpu(UpdateRoom room = UpdateRoom::kAuto) {
        EngineOptions options = options_on(DeviceKind::kCuda);
        options.update_room = room;
        open(options);
    }

    static messages::UpdateSpec from_disk(const std::string& path) {
        messages::UpdateSpec spec;
        spec.source.path = path;
        return spec;
    }
    // A partial update of bytes in the call.
    static messages::UpdateSpec from_bytes(
        messages::TensorFormat format, std::vector<messages::TensorInfo> tensors, Bytes bytes
    ) {
        messages::UpdateSpec spec;
        spec.partial = true;
        spec.source.kind = messages::SourceKind::kTensors;
        spec.source.format = format;
        spec.source.tensors = std::move(tensors);
        spec.source.payloads.resize(1);
        spec.source.payloads[0].data.values = std::move(bytes);
        return spec;
    }

    static std::string problems_of(const messages::WorkerStaged& vote) {
        std::string all;
        for (const std::string& problem : vote.outcome.problems) all += problem + "\n";
        return all;
    }
    static std::string version_of(const std::vector<messages::PartDigest>& digests) {
        const auto version = messages::version_digest({{{Rank{}, digests}}});
        EXPECT_TRUE(version) << version.error().message;
        return version ? to_hex(version->digest) : "";
    }
    static std::string digest_of(const messages::WorkerStaged& vote) {
        EXPECT_TRUE(vote.outcome.ok) << problems_of(vote);
        return version_of(vote.digests);
    }
    std::string live_digest() { return version_of(live_digests()); }
    std::string expected(const std::string& model) {
        return load_json("tests/data/golden/digests.json")["models"][model]["digest"];
    }
    void expect_generates_as(const std::string& model) {
        constexpr std::size_t kNum = 6;  // few, because the GPU in software is slow
        const Json entry =
            load_json("tests/data/models/reference.json")["models"][model]["greedy"][0];
        std::vector<TokenId> continuation = ids_of(entry["continuation"]);
        continuation.resize(std::min(kNum, continuation.size()));
        EXPECT_EQ(
            generate(
                replica_.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(continuation.size())
            ),
            continuation
        ) << model;
    }
    void expect_refused(const messages::WorkerStaged& vote, const std::string& why) {
        EXPECT_FALSE(vote.outcome.ok);
        EXPECT_NE(problems_of(vote).find(why), std::string::npos) << problems_of(vote);
        EXPECT_TRUE(vote.digests.empty());
        drop();
        EXPECT_EQ(live_digest(), expected("stories"));
    }
};

TEST_F(GpuUpdater, P1_P2_P10_ACommitSwapsAndARollbackSwapsBack) {
    EXPECT_EQ(live_digest(), expected("stories"));
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("bard")))), expected("bard"));
    EXPECT_EQ(live_digest(), expected("stories")) << "a stage touches nothing that serves";
    expect_generates_as("stories");
    commit();
    EXPECT_EQ(live_digest(), expected("bard"));
    expect_generates_as("bard");
    commit(/*rollback=*/true);
    EXPECT_EQ(live_digest(), expected("stories"));
    expect_generates_as("stories");
    commit(/*rollback=*/true);
    EXPECT_EQ(live_digest(), expected("bard")) << "what was left by a rollback is retained";
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("stories")))), expected("stories"));
    commit();
    expect_generates_as("stories");
}

// Work enqueued earlier represents a step that still runs when the stage begins.
TEST_F(GpuUpdater, P2_AStageWritesAfterTheReadsOfTheRetiredCopy) {
    digest_of(stage(from_disk(model_dir("bard"))));
    commit();
    WeightStore& weights = *replica_->root().weights();
    const std::byte* const retired = weights.target(messages::UpdateMode::kStaged).data();
    const std::int64_t bytes = weights.bytes();
    std::vector<std::byte> before(static_cast<std::size_t>(bytes));
    kernels::copy_and_wait(before.data(), retired, bytes);
    const auto reader = kernels::DeviceBuffer::create(bytes);
    ASSERT_TRUE(reader) << reader.error().message;
    kernels::copy_on_device(reader->data(), retired, bytes, replica_->root().device().stream());
    digest_of(stage(from_disk(model_dir("bard"))));
    std::vector<std::byte> read(before.size());
    replica_->root().device().read(read.data(), reader->data(), bytes);
    EXPECT_TRUE(read == before);
}

// --update-mode host: the GPU has one copy, whose address never changes.
TEST_F(GpuUpdater, P1_P2_P10_AVersionThatIsStagedInHostMemoryIsUploadedByItsCommit) {
    open_gpu(UpdateRoom::kHost);
    WeightStore& store = *replica_->root().weights();
    const std::byte* const live = store.live_data();
    const std::int64_t resident = store.resident_bytes();
    EXPECT_EQ(store.host_bytes(), 0) << "until there is an update";
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("bard")))), expected("bard"));
    EXPECT_EQ(live_digest(), expected("stories"));
    expect_generates_as("stories");
    commit();
    EXPECT_EQ(live_digest(), expected("bard"));
    expect_generates_as("bard");
    EXPECT_EQ(store.live_data(), live);
    EXPECT_EQ(store.resident_bytes(), resident) << "of the GPU nothing was taken";
    EXPECT_GT(store.host_bytes(), store.bytes());
    for (const std::string model : {"stories", "bard", "stories"}) {
        commit(/*rollback=*/true);
        EXPECT_EQ(live_digest(), expected(model));
    }
    expect_generates_as("stories");
    // A stage replaces what earlier exchanges left, and a dropped stage changes nothing.
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("bard")))), expected("bard"));
    drop();
    EXPECT_EQ(live_digest(), expected("stories"));
    expect_refused(stage(from_disk("/no/such/place")), "/no/such/place");
    messages::UpdateSpec direct = from_disk(model_dir("bard"));
    direct.mode = messages::UpdateMode::kDirect;
    EXPECT_EQ(digest_of(stage(direct)), expected("bard"));
    commit();
    EXPECT_EQ(live_digest(), expected("bard"));
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("stories")))), expected("stories"));
    commit();
    EXPECT_EQ(live_digest(), expected("stories"));
    commit(/*rollback=*/true);
    EXPECT_EQ(live_digest(), expected("bard"));
}

TEST_F(GpuUpdater, APartialUpdateInHostMemoryKeepsTheOtherTensors) {
    open_gpu(UpdateRoom::kHost);
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    const auto old_tensors = tensors_of("stories");
    const auto new_tensors = tensors_of("bard");
    const auto& [shape, bytes] = new_tensors.at(name);
    const messages::TensorInfo info{.name = name, .dtype = "BF16", .shape = shape};
    const std::string changed =
        digest_of(stage(from_bytes(messages::TensorFormat::kFlattened, {info}, bytes)));
    EXPECT_NE(changed, expected("stories"));
    commit();
    EXPECT_EQ(live_digest(), changed);
    const Bytes& old = old_tensors.at(name).bytes;
    EXPECT_EQ(
        digest_of(stage(from_bytes(messages::TensorFormat::kFlattened, {info}, old))),
        expected("stories")
    );
    commit();
    EXPECT_EQ(live_digest(), expected("stories"));
    commit(/*rollback=*/true);
    EXPECT_EQ(live_digest(), changed);
}

TEST_F(GpuUpdater, P8_ReleasedWeightsGiveBackTheHostMemoryOfUpdates) {
    open_gpu(UpdateRoom::kHost);
    WeightStore& store = *replica_->root().weights();
    digest_of(stage(from_disk(model_dir("bard"))));
    commit();
    EXPECT_GT(store.host_bytes(), 0);
    messages::WorkerMemory order;
    order.call = CallId{1};
    order.tags = {messages::MemoryTag::kWeights};
    EXPECT_TRUE(ask<messages::WorkerMemoryDone>(order).verdict.is_done());
    EXPECT_EQ(store.host_bytes(), 0);
    EXPECT_EQ(store.resident_bytes(), 0);
    order.action = messages::MemoryAction::kResume;
    EXPECT_TRUE(ask<messages::WorkerMemoryDone>(order).verdict.is_done());
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("stories")))), expected("stories"));
    commit();
    EXPECT_EQ(live_digest(), expected("stories"));
    EXPECT_EQ(store.host_bytes(), 0) << "there was nothing to protect";
}

TEST_F(GpuUpdater, ADirectUpdateOverwritesTheLiveCopy) {
    messages::UpdateSpec spec = from_disk(model_dir("bard"));
    spec.mode = messages::UpdateMode::kDirect;
    EXPECT_EQ(digest_of(stage(spec)), expected("bard"));
    commit();
    EXPECT_EQ(live_digest(), expected("bard"));
    expect_generates_as("bard");
    EXPECT_FALSE(replica_->root().weights()->has_retained());
}

TEST_F(GpuUpdater, P10_TensorsThatAreConvertedAreDigestedAsTheyAreResident) {
    const auto bard = tensors_of("bard");
    std::vector<messages::TensorInfo> infos;
    Bytes bytes;
    for (const auto& [name, tensor] : bard) {  // fp32 contains each bf16 exactly
        infos.push_back({.name = name, .dtype = "F32", .shape = tensor.shape});
        for (std::size_t i = 0; i < tensor.bytes.size(); i += 2)
            bytes.insert(bytes.end(), {0, 0, tensor.bytes[i], tensor.bytes[i + 1]});
    }
    EXPECT_EQ(
        digest_of(stage(from_bytes(messages::TensorFormat::kFlattened, infos, bytes))),
        expected("bard")
    );
    commit();
    EXPECT_EQ(live_digest(), expected("bard"));
}

TEST_F(GpuUpdater, APartialUpdateKeepsTheOtherTensors) {
    const std::string name = "model.norm.weight";
    const auto [shape, of_bard] = tensors_of("bard").at(name);
    const std::vector<messages::TensorInfo> infos{{.name = name, .dtype = "BF16", .shape = shape}};
    const auto vote = stage(from_bytes(messages::TensorFormat::kFlattened, infos, of_bard));
    EXPECT_EQ(vote.outcome.tensors, 1);
    const std::string mixed = digest_of(vote);
    EXPECT_NE(mixed, expected("stories"));
    commit();
    EXPECT_EQ(live_digest(), mixed);
    // The reverse update: the other tensors were kept.
    const Bytes of_stories = tensors_of("stories").at(name).bytes;
    EXPECT_EQ(
        digest_of(stage(from_bytes(messages::TensorFormat::kFlattened, infos, of_stories))),
        expected("stories")
    );
}

TEST_F(GpuUpdater, SparseUpdatesChangeTheirElementsAndTheLaterOfTwoCounts) {
    const std::string name = "model.layers.0.mlp.down_proj.weight";
    const auto [shape, stories] = tensors_of("stories").at(name);
    const Bytes bard = tensors_of("bard").at(name).bytes;
    const auto num = static_cast<std::int64_t>(stories.size() / 2);
    std::vector<std::int32_t> indices;
    Bytes values;
    const auto add = [&](std::int64_t index, const Bytes& from) {
        indices.push_back(static_cast<std::int32_t>(index));
        const auto at = static_cast<std::size_t>(index) * 2;
        values.insert(values.end(), {from[at], from[at + 1]});
    };
    add(5, stories);  // the later update of element 5 counts
    for (std::int64_t i = 0; i < num; ++i) add(i, bard);
    const auto payload = [&] {
        Bytes bytes(indices.size() * 4);
        std::memcpy(bytes.data(), indices.data(), bytes.size());
        bytes.insert(bytes.end(), values.begin(), values.end());
        return bytes;
    };
    const std::vector<messages::TensorInfo> infos{{.name = name, .dtype = "BF16", .shape = shape}};
    messages::UpdateSpec sparse = from_bytes(messages::TensorFormat::kSparse, infos, payload());
    sparse.source.num_updates = {num + 1};
    const std::string by_elements = digest_of(stage(sparse));
    drop();
    EXPECT_EQ(
        digest_of(stage(from_bytes(messages::TensorFormat::kFlattened, infos, bard))), by_elements
    );
    drop();
    indices.assign({static_cast<std::int32_t>(num)});
    values.resize(2);
    sparse = from_bytes(messages::TensorFormat::kSparse, infos, payload());
    sparse.source.num_updates = {1};
    expect_refused(stage(sparse), "the tensor has");
}

TEST_F(GpuUpdater, AValueThatIsNotFiniteIsRefusedByItsPlace) {
    const std::string name = "model.norm.weight";
    const auto [shape, bytes] = tensors_of("bard").at(name);
    Bytes broken = bytes;
    broken[2 * 17] = 0x80;
    broken[2 * 17 + 1] = 0x7f;  // infinity
    const std::vector<messages::TensorInfo> infos{{.name = name, .dtype = "BF16", .shape = shape}};
    messages::UpdateSpec spec = from_bytes(messages::TensorFormat::kFlattened, infos, broken);
    expect_refused(stage(spec), "'model.norm.weight' is not finite: inf at row 0, column 17");
    spec.allow_nonfinite = true;
    EXPECT_TRUE(stage(spec).outcome.ok);
}

TEST_F(GpuUpdater, P2_ACheckpointThatIsBrokenLeavesTheOldVersion) {
    test::TempDir dir;
    std::ifstream file(model_dir("bard") + "/model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    bytes.resize(bytes.size() - 1000);
    dir.write("model.safetensors", bytes);
    const messages::WorkerStaged vote = stage(from_disk(dir.path()));
    EXPECT_FALSE(vote.outcome.ok);
    drop();
    EXPECT_EQ(live_digest(), expected("stories"));
    expect_generates_as("stories");
}

TEST_F(GpuUpdater, WeightsThatAreAwaitedComeByTheFirstUpdate) {
    EngineOptions options = options_on(DeviceKind::kCuda);
    options.awaits_weights = true;
    open(options);
    EXPECT_TRUE(replica_->root().weights()->is_lost());
    EXPECT_EQ(digest_of(stage(from_disk(model_dir("bard")))), expected("bard"));
    commit();
    EXPECT_FALSE(replica_->root().weights()->is_lost());
    EXPECT_EQ(live_digest(), expected("bard"));
    expect_generates_as("bard");
}

}  // namespace
}  // namespace pitstop::tp_worker
