// --keep-committed: all ranks together write the checkpoint that they loaded. Later steps leave
// sealed files unchanged.
#include "base/isa.h"
#include "kernels/runtime/thread_pool.h"
#include "messages/codec.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/test_replica.h"
#include "tests/tp_worker/weights/shard_definition.h"
#include "tp_worker/update/keeper.h"
#include "tp_worker/update/kept_weights.h"
#include "tp_worker/weights/checkpoint_tensors.h"
#include "tp_worker/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <semaphore>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

const std::string kDigest(32, 'a');
const std::string kOther(32, 'b');
const std::string kThird(32, 'c');

std::vector<std::string> golden_dirs() {
    std::vector<std::string> dirs;
    for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/data/golden")) {
        if (entry.is_directory()) dirs.push_back(entry.path().string());
    }
    std::ranges::sort(dirs);
    return dirs;
}

std::vector<std::byte> bytes_of(
    const checkpoint::Checkpoint& checkpoint, const checkpoint::StoredTensor& stored
) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(stored.bytes));
    EXPECT_TRUE(checkpoint.read(stored, 0, bytes));
    return bytes;
}

// Converts the tensor to its resident form: bf16, or fp32 for weights that are resident in fp32.
std::vector<std::byte> bf16_of(
    const checkpoint::Checkpoint& checkpoint, const checkpoint::StoredTensor& stored
) {
    const std::vector<std::byte> bytes = bytes_of(checkpoint, stored);
    if (stored.spec.dtype != checkpoint::StoredDtype::kF32) return bytes;
    std::vector<std::byte> upper;
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
        EXPECT_TRUE(bytes[i] == std::byte{0} && bytes[i + 1] == std::byte{0}) << "no bf16 number";
        upper.insert(upper.end(), {bytes[i + 2], bytes[i + 3]});
    }
    return upper;
}

class KeptWeightsTest : public testing::TestWithParam<std::tuple<std::string, int>> {};

// Every family, with and without tied embeddings and biases, and with KV heads on several ranks.
TEST_P(KeptWeightsTest, AllRanksTogetherWriteTheTensorsOfTheCheckpoint) {
    const auto& [model_dir, tp] = GetParam();
    const auto config = ModelConfig::read(model_dir);
    ASSERT_TRUE(config) << config.error().message;
    const auto checkpoint = checkpoint::Checkpoint::open(model_dir);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const test::TempDir to;
    kernels::ThreadPool threads(1);
    const auto device = Device::open({.isa = best_isa()}, threads);
    ASSERT_TRUE(device) << device.error().message;
    const messages::WorkerKeep version{.epoch = Epoch{7}, .label = "step \"7\"", .digest = kDigest};
    std::vector<WeightLayout> layouts;
    for (int rank = 0; rank < tp; ++rank) {
        auto layout = layout_of(*config, Rank{rank}, tp);
        if (!layout) GTEST_SKIP() << layout.error().message;
        layouts.push_back(*std::move(layout));
    }
    ASSERT_TRUE(KeptWeights(layouts[0], version).create(to.path()));
    for (int rank = tp; rank-- > 0;) {
        const WeightLayout& layout = layouts[static_cast<std::size_t>(rank)];
        const CheckpointTensors tensors(layout, *checkpoint);
        auto arena = Arena::reserve("weights", layout.bytes());
        ASSERT_TRUE(arena && arena->commit());
        ASSERT_TRUE(load_weights(
            layout, tensors, model_dir, device->host_ops(), device->host_stream(), arena->data()
        ));
        const auto copy = [&](std::int64_t begin, std::span<std::byte> out) -> Result<> {
            EXPECT_LE(begin + static_cast<std::int64_t>(out.size()), layout.bytes());
            std::copy_n(arena->data() + begin, out.size(), out.data());
            return Ok{};
        };
        const Result<> written =
            KeptWeights(layout, version)
                .write({.directory = to.path(), .is_root = rank == 0, .copy = copy, .between = [] {
                        }});
        ASSERT_TRUE(written) << written.error().message;
    }
    const auto kept = checkpoint::Checkpoint::open(to.path());
    ASSERT_TRUE(kept) << kept.error().message;
    ASSERT_EQ(kept->tensors().size(), layouts[0].tensors().size());
    for (const checkpoint::StoredTensor& stored : kept->tensors()) {
        const checkpoint::StoredTensor* original = checkpoint->find(stored.spec.name);
        ASSERT_NE(original, nullptr) << stored.spec.name;
        EXPECT_EQ(stored.spec.shape, original->spec.shape) << stored.spec.name;
        EXPECT_EQ(bf16_of(*kept, stored), bf16_of(*checkpoint, *original)) << stored.spec.name;
    }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    KeptWeightsTest,
    testing::Combine(testing::ValuesIn(golden_dirs()), testing::Values(1, 2, 4)),
    [](const auto& test) {
        return fmt::format(
            "{}_tp{}",
            fs::path(std::get<0>(test.param)).filename().string(),
            std::get<1>(test.param)
        );
    }
);

// A rank holds several pieces of these tensors: by rows, by columns, and in parts larger than a
// piece (copies of KV heads).
TEST(KeptWeights, PiecesOfLargeTensorsLieWhereTheyBelong) {
    constexpr int kTp = 2;
    ModelConfig config{.hidden = 6144, .ffn = 64, .num_layers = 1};
    config.layers = {kDenseLayer};
    config.num_q_heads = 6;
    config.num_kv_heads = 3;
    config.head_dim = 96;
    config.vocab_len = 401;
    const auto bits_of = [](std::int64_t element) {
        return static_cast<std::uint16_t>(element ^ (element >> 16) * 31);
    };
    const test::TempDir to;
    const messages::WorkerKeep version{.epoch = Epoch{7}, .digest = kDigest};
    for (int rank = 0; rank < kTp; ++rank) {
        const auto layout = layout_of(config, Rank{rank}, kTp);
        ASSERT_TRUE(layout) << layout.error().message;
        const ShardDefinition definition(config, rank, {32, 32});
        std::vector<std::byte> arena(static_cast<std::size_t>(layout->bytes()));
        std::int64_t bytes_max = 0;
        for (const WeightTensor& tensor : layout->tensors()) {
            bytes_max = std::max(bytes_max, tensor.bytes());
            auto* shard = reinterpret_cast<std::uint16_t*>(arena.data() + tensor.offset);
            for (std::int64_t i = 0; i < tensor.rows * tensor.cols; ++i) {
                const auto element = definition.element(tensor, i / tensor.cols, i % tensor.cols);
                if (element) shard[i] = bits_of(*element);
            }
        }
        ASSERT_GT(bytes_max, kKeepPieceBytes);
        const KeptWeights kept(*layout, version);
        if (rank == 0) {
            ASSERT_TRUE(kept.create(to.path()));
        }
        std::size_t copied_max = 0;
        const auto copy = [&](std::int64_t begin, std::span<std::byte> out) -> Result<> {
            copied_max = std::max(copied_max, out.size());
            std::copy_n(arena.data() + begin, out.size(), out.data());
            return Ok{};
        };
        ASSERT_TRUE(kept.write(
            {.directory = to.path(), .is_root = rank == 0, .copy = copy, .between = [] {}}
        ));
        EXPECT_LE(copied_max, static_cast<std::size_t>(kKeepPieceBytes));
    }
    const auto written = checkpoint::Checkpoint::open(to.path());
    ASSERT_TRUE(written) << written.error().message;
    for (const checkpoint::StoredTensor& stored : written->tensors()) {
        const std::vector<std::byte> bytes = bytes_of(*written, stored);
        for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
            std::uint16_t bits = 0;
            std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
            ASSERT_EQ(bits, bits_of(static_cast<std::int64_t>(i)))
                << stored.spec.name << " at element " << i;
        }
    }
}

class KeptDirectoryTest : public testing::Test {
  protected:
    // The kept directories, each by the first letter of its digest, oldest first.
    [[nodiscard]] std::string there() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(place_.path()))
            names.push_back(entry.path().filename().string());
        std::ranges::sort(names);
        std::string letters;
        for (const std::string& name : names)
            letters += name == ".writing" ? 'w' : name.starts_with("committed-") ? name[19] : '?';
        return letters;
    }
    std::string keep(const std::string& digest) {
        EXPECT_TRUE(directory_.begin());
        EXPECT_TRUE(directory_.write({"config.json", "{}"}));
        const Result<std::string> path = directory_.seal(digest);
        EXPECT_TRUE(path) << path.error().message;
        return *path;
    }

    test::TempDir place_{};
    KeptDirectory directory_{place_.path(), ""};
};

TEST_F(KeptDirectoryTest, HoldsTheNewestAndOneMore) {
    const std::string first = keep(kDigest);
    EXPECT_EQ(there(), "a");
    keep(kOther);
    EXPECT_EQ(there(), "ab");
    ASSERT_TRUE(directory_.begin());
    EXPECT_EQ(there(), "wb") << "two with the one that is being written";
    ASSERT_TRUE(directory_.drop());
    EXPECT_EQ(there(), "b");
    keep(kThird);
    EXPECT_EQ(there(), "bc");
    EXPECT_FALSE(fs::exists(first));
}

TEST_F(KeptDirectoryTest, FindsAVersionByItsDigestAndMakesItTheNewest) {
    EXPECT_EQ(*directory_.find(kDigest), std::nullopt);
    const std::string first = keep(kDigest);
    EXPECT_EQ(*directory_.find(kDigest), first);
    keep(kOther);
    const std::optional<std::string> again = *directory_.find(kDigest);
    ASSERT_TRUE(again.has_value());
    EXPECT_NE(*again, first);
    EXPECT_EQ(there(), "ba");
    keep(kThird);
    EXPECT_EQ(there(), "ac") << "the one that was found is newer than the other";
}

TEST_F(KeptDirectoryTest, LeavesWhatIsNotOursAlone) {
    place_.write("notes.txt", "mine");
    place_.write("committed-1-x", "mine");
    fs::create_directory(place_.path("committed-00000009-" + std::string(32, 'Z')));
    keep(kDigest);
    keep(kOther);
    keep(kThird);
    EXPECT_EQ(place_.read("notes.txt"), "mine");
    EXPECT_EQ(place_.read("committed-1-x"), "mine");
    EXPECT_TRUE(fs::exists(place_.path("committed-00000009-" + std::string(32, 'Z'))));
}

TEST_F(KeptDirectoryTest, SaysWhatIsInTheWay) {
    KeptDirectory nowhere(place_.path("none"), "");
    const Result<> begun = nowhere.begin();
    ASSERT_FALSE(begun);
    EXPECT_NE(begun.error().message.find("none"), std::string::npos) << begun.error().message;
    ASSERT_TRUE(directory_.begin());
    ASSERT_TRUE(directory_.write({"config.json", "{}"}));
    EXPECT_FALSE(directory_.write({"config.json", "{}"})) << "nothing is overwritten";
    EXPECT_FALSE(directory_.write({"none/config.json", "{}"}));
}

TEST_F(KeptDirectoryTest, SmallFilesAreAllButTheWeightsAndTheirIndex) {
    const test::TempDir model;
    for (const std::string name :
         {"config.json",
          "tokenizer.json",
          "merges.txt",
          "tokenizer.model",
          "chat_template.jinja",
          "model.safetensors",
          "model.safetensors.index.json",
          "README.md"})
        model.write(name, name);
    const auto files = read_small_files(model.path());
    ASSERT_TRUE(files) << files.error().message;
    std::vector<std::string> names;
    for (const SmallFile& file : *files) {
        EXPECT_EQ(file.bytes, file.name);
        names.push_back(file.name);
    }
    std::ranges::sort(names);
    EXPECT_EQ(
        names,
        (std::vector<std::string>{
            "chat_template.jinja", "config.json", "merges.txt", "tokenizer.json", "tokenizer.model"}
        )
    );
    EXPECT_FALSE(read_small_files(model.path("none")));
}

// One keeper, of the model `stories`.
class KeeperTest : public testing::Test {
  protected:
    void SetUp() override {
        ReplicaOptions options;
        options.engine.model_dir = source_dir() + "/launch/models/stories";
        options.engine.isa = best_isa();
        options.engine.max_total_tokens = 256;
        auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica) << replica.error().message;
        replica_ = *std::move(replica);
        keeper_ = std::make_unique<Keeper>(Keeper::Args{
            .directory = place_.path(),
            .files = {{"config.json", "{}"}},
            .layout = engine().layout(),
            .add_run = engine().device().add_run(),
            .pace = pace_,
            .fault_point = FaultPoint("test"),
            .answer =
                [this](const messages::Frames& frames) {
                    answers_.push_back(
                        *decode<messages::WorkerKept>(frames, messages::UnknownFields::kRefuse)
                    );
                    num_answers_.release();
                },
        });
    }
    Engine& engine() { return replica_->root(); }
    const Arena& live() { return engine().weights()->live_memory(); }
    void order(messages::KeepStep step, const Arena* arena, std::uint64_t call = 1) {
        keeper_->handle_step(
            {.call = CallId{call}, .step = step, .epoch = Epoch{2}, .digest = digest_}, arena
        );
    }
    messages::WorkerKept answer() {
        if (!num_answers_.try_acquire_for(std::chrono::seconds(60)))
            throw std::runtime_error("no answer");
        return answers_.back();
    }
    messages::WorkerKept execute(messages::KeepStep step) {
        order(step, &live());
        return answer();
    }

    test::TempDir place_{};
    Pace pace_{1.0};
    std::unique_ptr<TestReplica> replica_{};
    std::string digest_{kDigest};
    std::vector<messages::WorkerKept> answers_{};
    std::counting_semaphore<> num_answers_{0};
    std::unique_ptr<Keeper> keeper_{};  // last, because it calls back with answers
};

TEST_F(KeeperTest, BytesThatAreReadBackMustHaveTheDigestOfTheVersion) {
    EXPECT_EQ(execute(messages::KeepStep::kBegin).verdict.code, std::nullopt);
    EXPECT_EQ(execute(messages::KeepStep::kWrite).verdict.code, std::nullopt);
    const messages::WorkerKept refused = execute(messages::KeepStep::kSeal);
    EXPECT_EQ(refused.verdict.code, ErrorCode::kDataLoss);
    EXPECT_NE(refused.verdict.message.find(kDigest), std::string::npos);
    const auto read = digest_of_checkpoint(
        place_.path(".writing"), engine().device().add_run(), [] { return Result<>(Ok{}); }
    );
    ASSERT_TRUE(read) << read.error().message;
    digest_ = *read;
    const messages::WorkerKept sealed = execute(messages::KeepStep::kSeal);
    EXPECT_EQ(sealed.verdict.code, std::nullopt) << sealed.verdict.message;
    EXPECT_TRUE(fs::exists(sealed.path + "/config.json"));
    EXPECT_EQ(execute(messages::KeepStep::kBegin).path, sealed.path)
        << "the directory exists already";
    // A damaged file is written anew.
    fs::resize_file(sealed.path + "/model.safetensors", 100);
    EXPECT_EQ(execute(messages::KeepStep::kBegin).path, "");
    EXPECT_EQ(execute(messages::KeepStep::kWrite).verdict.code, std::nullopt);
    const std::string again = execute(messages::KeepStep::kSeal).path;
    EXPECT_EQ(execute(messages::KeepStep::kBegin).path, again);
    fs::remove(again + "/config.json");
    EXPECT_EQ(execute(messages::KeepStep::kBegin).path, "");
}

TEST_F(KeeperTest, MemoryThatIsNeededIsNotRead) {
    EXPECT_EQ(execute(messages::KeepStep::kBegin).verdict.code, std::nullopt);
    order(messages::KeepStep::kWrite, nullptr);
    EXPECT_EQ(answer().verdict.code, ErrorCode::kAborted);
    {
        // Releases the memory while the file is being written.
        order(messages::KeepStep::kWrite, &live());
        keeper_->let_go(live());
        ASSERT_TRUE(engine().weights()->release(WeightStore::Keep::kNo));
        const messages::WorkerKept given_up = answer();
        EXPECT_TRUE(given_up.verdict.is_done() || given_up.verdict.code == ErrorCode::kAborted)
            << given_up.verdict.message;
    }
    order(messages::KeepStep::kDrop, nullptr);
    order(messages::KeepStep::kWrite, nullptr);
    answer();
}

TEST_F(KeeperTest, ADirectoryThatIsGoneIsAnError) {
    fs::remove_all(place_.path());
    const messages::WorkerKept refused = execute(messages::KeepStep::kBegin);
    EXPECT_EQ(refused.verdict.code, ErrorCode::kUnavailable);
    EXPECT_NE(refused.verdict.message.find(place_.path()), std::string::npos);
    EXPECT_EQ(execute(messages::KeepStep::kWrite).verdict.code, ErrorCode::kUnavailable);
    EXPECT_FALSE(execute(messages::KeepStep::kSeal).verdict.is_done());
}

}  // namespace
}  // namespace pitstop::tp_worker
