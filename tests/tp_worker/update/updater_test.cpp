// Updates on real engines: what a scheduler would order, and what must come of it.
#include "tp_worker/update/updater.h"

#include "messages/codec.h"
#include "messages/version_digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <fstream>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

Json load_json(const std::string& path) {
    return Json::parse(std::ifstream(source_dir() + "/" + path));
}

std::vector<TokenId> ids_of(const Json& json) {
    std::vector<TokenId> ids;
    for (const int id : json) ids.push_back(static_cast<TokenId>(id));
    return ids;
}

// A replica of `stories` with an updater on each rank.
class UpdaterTest : public testing::Test {
  protected:
    void open(int tp) {
        ReplicaOptions options;
        options.engine.model_dir = model_dir("stories");
        options.engine.compute = Compute::kFp32;
        options.engine.isa = best_isa();
        options.engine.max_total_tokens = 1024;
        options.tp = tp;
        auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica) << replica.error().message;
        replica_ = *std::move(replica);
        for (int rank = 0; rank < tp; ++rank) {
            updaters_.push_back(
                std::make_unique<Updater>(replica_->engine(rank), pace_, fault_point_)
            );
        }
    }
    ~UpdaterTest() override { updaters_.clear(); }

    // Ordered on rank 0; its answers come later.
    template <class Order>
    void order(const Order& order) {
        const Result<std::vector<messages::Frames>> now = updaters_[0]->obey(encode(order));
        ASSERT_TRUE(now) << now.error().message;
        ASSERT_TRUE(now->empty()) << "answered at once, by " << now->front().type;
    }
    // Rank 0's next answers of this type, of whatever else comes meanwhile.
    template <class Answer>
    std::vector<Answer> wait_for(std::size_t num) {
        std::vector<Answer> answers;
        while (answers.size() < num) {
            pollfd item{updaters_[0]->fd(), POLLIN, 0};
            if (::poll(&item, 1, 20'000) != 1) break;
            for (const messages::Frames& one : updaters_[0]->take_answers()) {
                if (one.type == Answer::kType)
                    answers.push_back(*decode<Answer>(one, messages::UnknownFields::kRefuse));
            }
        }
        EXPECT_EQ(answers.size(), num);
        return answers;
    }
    static std::string digest_of(const messages::WorkerDigests& answer) {
        const auto version = messages::version_digest({{{answer.rank, answer.digests}}});
        EXPECT_TRUE(version);
        return version ? to_hex(version->digest) : "";
    }
    messages::WorkerStage stage_order(
        const std::string& path, messages::UpdateMode mode = messages::UpdateMode::kStaged
    ) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{++last_update_};
        order.spec.source.path = path;
        order.spec.mode = mode;
        return order;
    }

    // Orders on every rank, and one answer of each.
    template <class Answer, class Order>
    std::vector<Answer> ask(const Order& order) {
        std::vector<Answer> answers;
        for (const auto& updater : updaters_) {
            Result<std::vector<messages::Frames>> now = updater->obey(encode(order));
            EXPECT_TRUE(now) << now.error().message;
            std::vector<messages::Frames> frames = now ? *now : std::vector<messages::Frames>{};
            const std::size_t num_before = answers.size();
            while (true) {
                for (const messages::Frames& one : frames) {
                    if (one.type != Answer::kType) continue;  // the vote of a stage dropped since
                    auto answer = decode<Answer>(one, messages::UnknownFields::kRefuse);
                    EXPECT_TRUE(answer);
                    if (answer) answers.push_back(*std::move(answer));
                }
                if (!now || answers.size() > num_before) break;
                pollfd item{updater->fd(), POLLIN, 0};
                if (::poll(&item, 1, 20'000) != 1) break;
                frames = updater->take_answers();
            }
        }
        EXPECT_GE(answers.size(), updaters_.size());
        return answers;
    }

    std::vector<messages::WorkerStaged> stage(
        const std::string& path, messages::UpdateMode mode = messages::UpdateMode::kStaged
    ) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{++last_update_};
        order.spec = spec_;
        order.spec.source.path = path;
        order.spec.mode = mode;
        return ask<messages::WorkerStaged>(order);
    }
    void commit(bool rollback = false) {
        if (rollback) ++last_update_;
        ask<messages::WorkerCommitted>(messages::WorkerCommit{
            .update = messages::UpdateId{last_update_},
            .epoch = Epoch{++epoch_},
            .rollback = rollback});
    }
    void drop() {
        ask<messages::WorkerDropped>(messages::WorkerDrop{
            .update = messages::UpdateId{last_update_}});
    }

    std::string digest_of_votes(const std::vector<messages::WorkerStaged>& votes) {
        std::vector<messages::RankParts> parts;
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_TRUE(vote.outcome.ok)
                << (vote.outcome.problems.empty() ? "" : vote.outcome.problems[0]);
            parts.push_back({vote.outcome.rank, vote.digests});
        }
        const auto version = messages::version_digest(parts);
        EXPECT_TRUE(version) << version.error().message;
        return version ? to_hex(version->digest) : "";
    }
    // Of the live weights, computed from memory.
    std::string live_digest() {
        const std::vector<messages::WorkerDigests> answers =
            ask<messages::WorkerDigests>(messages::WorkerDigest{.call = CallId{1}});
        std::vector<messages::RankParts> parts;
        for (const messages::WorkerDigests& answer : answers) {
            EXPECT_EQ(answer.epoch, Epoch{epoch_});
            parts.push_back({answer.rank, answer.digests});
        }
        const auto version = messages::version_digest(parts);
        EXPECT_TRUE(version);
        return version ? to_hex(version->digest) : "";
    }

    // Whether the replica generates what the reference says `model` does.
    void expect_generates_as(const std::string& model) {
        const Json entry =
            load_json("tests/data/models/reference.json")["models"][model]["greedy"][0];
        const std::vector<TokenId> expected = ids_of(entry["continuation"]);
        EXPECT_EQ(
            generate(
                replica_.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(expected.size())
            ),
            expected
        ) << model;
    }

    // A vote of no from every rank, for this reason; the old version is there bit for bit.
    void expect_refused(const std::vector<messages::WorkerStaged>& votes, const std::string& why) {
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_FALSE(vote.outcome.ok);
            std::string all;
            for (const std::string& problem : vote.outcome.problems) all += problem + "\n";
            EXPECT_NE(all.find(why), std::string::npos) << all;
            EXPECT_TRUE(vote.digests.empty());
        }
        drop();
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
    }

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::vector<std::unique_ptr<Updater>> updaters_{};
    messages::UpdateSpec spec_{};
    std::uint64_t last_update_ = 0;
    std::int64_t epoch_ = 1;
    Json expected_ = load_json("tests/data/golden/digests.json")["models"];
};

TEST_F(UpdaterTest, P2_P10_ACommitSwapsAndARollbackSwapsBack) {
    for (const int tp : {1, 2, 4}) {
        SCOPED_TRACE(tp);
        updaters_.clear();
        last_update_ = 0;
        epoch_ = 1;
        open(tp);
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
        EXPECT_EQ(digest_of_votes(stage(model_dir("bard"))), expected_["bard"]["digest"]);
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"])
            << "a stage touches nothing that serves";
        expect_generates_as("stories");
        commit();
        EXPECT_EQ(live_digest(), expected_["bard"]["digest"]);
        expect_generates_as("bard");
        commit(/*rollback=*/true);
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
        expect_generates_as("stories");
        commit(/*rollback=*/true);
        EXPECT_EQ(live_digest(), expected_["bard"]["digest"])
            << "what was left by a rollback is retained";
    }
}

TEST_F(UpdaterTest, ADirectUpdateOverwritesTheLiveCopy) {
    open(2);
    EXPECT_EQ(
        digest_of_votes(stage(model_dir("bard"), messages::UpdateMode::kDirect)),
        expected_["bard"]["digest"]
    );
    commit();
    expect_generates_as("bard");
    EXPECT_FALSE(replica_->engine(0).weights()->has_retained());
}

TEST_F(UpdaterTest, APartialUpdateKeepsTheOtherTensors) {
    open(2);
    test::TempDir dir;
    // Only the final norm, as bard has it.
    std::ifstream file(model_dir("bard") + "/model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t header_len = 0;
    std::memcpy(&header_len, bytes.data(), 8);
    const Json header = Json::parse(bytes.substr(8, header_len));
    const std::string name = "model.norm.weight";
    const std::size_t begin = header[name]["data_offsets"][0];
    const std::size_t end = header[name]["data_offsets"][1];
    Json small;
    small[name] = {
        {"dtype", "BF16"}, {"shape", header[name]["shape"]}, {"data_offsets", {0, end - begin}}};
    const std::string text = small.dump();
    std::uint64_t text_len = text.size();
    dir.write(
        "model.safetensors",
        std::string(reinterpret_cast<const char*>(&text_len), 8) + text +
            bytes.substr(8 + header_len + begin, end - begin)
    );

    expect_refused(
        stage(dir.path()), "model.layers.0.input_layernorm.weight"
    );  // not declared partial
    spec_.partial = true;
    const std::vector<messages::WorkerStaged> votes = stage(dir.path());
    digest_of_votes(votes);
    for (const messages::WorkerStaged& vote : votes) {
        EXPECT_EQ(vote.outcome.tensors, 1);
        for (const messages::PartDigest& part : vote.digests) {
            if (part.parts != 1) continue;
            const std::string hex = to_hex({part.lane0, part.lane1});
            EXPECT_EQ(hex, expected_[part.name == name ? "bard" : "stories"]["tensors"][part.name])
                << part.name;
        }
    }
    commit();
}

TEST_F(UpdaterTest, ADropStopsAStageAndAnotherCanBegin) {
    open(1);
    for (int i = 0; i < 5; ++i) {
        order(stage_order(model_dir("bard")));
        drop();  // waits until the stage has stopped writing
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
    }
    EXPECT_EQ(digest_of_votes(stage(model_dir("bard"))), expected_["bard"]["digest"]);
}

TEST_F(UpdaterTest, AStageIsTakenHoweverManyCallsWait) {
    open(1);
    const messages::WorkerDigest call{.call = CallId{1}};
    std::size_t num_waiting = 0;
    std::string refusal;
    while (refusal.empty()) {
        ASSERT_LT(num_waiting, 1'000'000u);
        const auto now = updaters_[0]->obey(encode(call));
        ASSERT_TRUE(now);
        if (now->empty())
            ++num_waiting;
        else
            refusal =
                decode<messages::WorkerDigests>(now->front(), messages::UnknownFields::kRefuse)
                    ->verdict.code_name();
    }
    EXPECT_EQ(refusal, "resource_exhausted");
    for (int i = 0; i < 3; ++i) {
        order(stage_order(model_dir("bard")));
        order(messages::WorkerDrop{.update = messages::UpdateId{last_update_}});
    }
    wait_for<messages::WorkerDropped>(3);
    EXPECT_EQ(digest_of_votes(stage(model_dir("bard"))), expected_["bard"]["digest"]);
}

// The memory that a read was ordered of may be a sender's, whose place the stage after next takes.
TEST_F(UpdaterTest, ReadsOrderedBeforeAStageSeeTheMemoryAsItWasThen) {
    open(1);
    stage(model_dir("bard"));
    WeightStore& store = *replica_->engine(0).weights();
    Arena& staged = store.target(messages::UpdateMode::kStaged);
    const int fd = ::memfd_create("adopted", MFD_CLOEXEC);
    ASSERT_EQ(::write(fd, staged.data(), static_cast<std::size_t>(staged.bytes())), staged.bytes());
    ASSERT_TRUE(staged.adopt(fd));
    ::close(fd);
    commit();
    stage(model_dir("stories"));
    constexpr std::size_t kNumReads = 200;
    for (std::size_t i = 0; i < kNumReads; ++i) order(messages::WorkerDigest{.call = CallId{1}});
    ASSERT_TRUE(updaters_[0]->obey(encode(messages::WorkerCommit{
        .update = messages::UpdateId{last_update_}, .epoch = Epoch{++epoch_}})));
    order(stage_order(model_dir("stories")));  // into the adopted copy's place
    for (const messages::WorkerDigests& answer : wait_for<messages::WorkerDigests>(kNumReads)) {
        EXPECT_EQ(answer.epoch, Epoch{epoch_ - 1});
        EXPECT_EQ(digest_of(answer), expected_["bard"]["digest"]);
    }
    drop();
}

TEST_F(UpdaterTest, WhatADirectUpdateWritesIsNotRead) {
    open(1);
    order(stage_order(model_dir("bard"), messages::UpdateMode::kDirect));
    const auto digest = updaters_[0]->obey(encode(messages::WorkerDigest{.call = CallId{1}}));
    ASSERT_TRUE(digest && digest->size() == 1);
    EXPECT_EQ(
        decode<messages::WorkerDigests>(digest->front(), messages::UnknownFields::kRefuse)
            ->verdict.code,
        ErrorCode::kFailedPrecondition
    );
    const auto tensor = updaters_[0]->obey(encode(messages::WorkerReadTensor{
        .call = CallId{2}, .name = "model.norm.weight"}));
    ASSERT_TRUE(tensor && tensor->size() == 1);
    EXPECT_EQ(
        decode<messages::WorkerTensor>(tensor->front(), messages::UnknownFields::kRefuse)
            ->verdict.code,
        ErrorCode::kFailedPrecondition
    );
    wait_for<messages::WorkerStaged>(1);
    commit();
    EXPECT_EQ(live_digest(), expected_["bard"]["digest"]);
}

TEST_F(UpdaterTest, OrdersThatBreakTheProtocolEndTheRank) {
    open(1);
    EXPECT_FALSE(updaters_[0]->obey(encode(messages::WorkerCommit{
        .update = messages::UpdateId{5}, .epoch = Epoch{2}})));
    EXPECT_FALSE(updaters_[0]->obey(encode(messages::WorkerCommit{
        .update = messages::UpdateId{5}, .epoch = Epoch{2}, .rollback = true})));
    stage(model_dir("bard"));
    messages::WorkerStage second;
    second.update = messages::UpdateId{99};
    second.spec.source.path = model_dir("bard");
    EXPECT_FALSE(updaters_[0]->obey(encode(second)));
}

TEST_F(UpdaterTest, P2_EveryBadCheckpointIsRefusedByName) {
    open(2);
    const auto copy = [](const test::TempDir& dir) { dir.copy_from(model_dir("bard")); };
    const auto edit_header = [](const test::TempDir& dir, const std::function<void(Json&)>& edit) {
        std::string bytes = dir.read("model.safetensors");
        std::uint64_t len = 0;
        std::memcpy(&len, bytes.data(), 8);
        Json header = Json::parse(bytes.substr(8, len));
        edit(header);
        const std::string text = header.dump();
        const std::uint64_t new_len = text.size();
        dir.write(
            "model.safetensors",
            std::string(reinterpret_cast<const char*>(&new_len), 8) + text + bytes.substr(8 + len)
        );
    };
    expect_refused(stage("/nowhere"), "/nowhere");
    {
        test::TempDir dir;
        copy(dir);
        edit_header(dir, [](Json& header) {
            header["model.norm.weights"] = header["model.norm.weight"];
            header.erase("model.norm.weight");
        });
        // Both problems, not only the first.
        std::vector<messages::WorkerStaged> votes = stage(dir.path());
        EXPECT_EQ(votes[0].outcome.num_problems, 2);
        expect_refused(votes, "model.norm.weights");
    }
    {
        test::TempDir dir;
        copy(dir);
        edit_header(dir, [](Json& header) { header["model.norm.weight"]["shape"] = {2, 64}; });
        expect_refused(stage(dir.path()), "[2, 64]");
    }
    {
        test::TempDir dir;
        copy(dir);
        edit_header(dir, [](Json& header) { header["model.norm.weight"]["dtype"] = "I16"; });
        expect_refused(stage(dir.path()), "I16");
    }
    {
        test::TempDir dir;
        copy(dir);
        dir.truncate("model.safetensors", 1'000'000);
        expect_refused(stage(dir.path()), "model.safetensors");
    }
    {
        test::TempDir dir;
        copy(dir);
        dir.write(
            "config.json",
            dir.read("config.json").replace(dir.read("config.json").find("10000.0"), 7, "20000.0")
        );
        expect_refused(stage(dir.path()), "rope_theta");
    }
    {
        test::TempDir dir;
        copy(dir);
        std::string bytes = dir.read("model.safetensors");
        bytes[bytes.size() - 1] = '\x7f';  // the last element: exponent all ones
        bytes[bytes.size() - 2] = '\xc0';
        dir.write("model.safetensors", bytes);
        expect_refused(stage(dir.path()), "is not finite");
        spec_.allow_nonfinite = true;
        for (const messages::WorkerStaged& vote : stage(dir.path())) EXPECT_TRUE(vote.outcome.ok);
        drop();
        spec_.allow_nonfinite = false;
    }
    spec_.manifest = {{.name = "model.norm.weight", .dtype = "BF16", .shape = {64}}};
    expect_refused(stage(model_dir("bard")), "declared as [64]");
    spec_.manifest = {{.name = "model.normal.weight"}};
    expect_refused(stage(model_dir("bard")), "model.normal.weight");
    expect_generates_as("stories");
}

TEST_F(UpdaterTest, ATensorIsReadBackFromItsShards) {
    std::ifstream file(model_dir("stories") + "/model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t header_len = 0;
    std::memcpy(&header_len, bytes.data(), 8);
    const Json header = Json::parse(bytes.substr(8, header_len));
    for (const int tp : {1, 2, 4}) {
        updaters_.clear();
        open(tp);
        for (const std::string name :
             {"model.embed_tokens.weight",
              "model.layers.1.self_attn.k_proj.weight",
              "model.layers.2.mlp.down_proj.weight",
              "model.norm.weight"}) {
            SCOPED_TRACE(name + " on " + std::to_string(tp));
            const std::size_t begin = header[name]["data_offsets"][0];
            const std::size_t end = header[name]["data_offsets"][1];
            const std::string want = bytes.substr(8 + header_len + begin, end - begin);
            const std::size_t row_bytes = header[name]["shape"].back().get<std::size_t>() * 2;
            std::string got(want.size(), '\xaa');
            for (const messages::WorkerTensor& piece :
                 ask<messages::WorkerTensor>(messages::WorkerReadTensor{
                     .call = CallId{3}, .name = name})) {
                ASSERT_EQ(piece.verdict.code, std::nullopt);
                for (std::int64_t row = 0; row < piece.num_rows; ++row) {
                    const auto width = static_cast<std::size_t>(piece.num_cols) * 2;
                    std::memcpy(
                        got.data() + static_cast<std::size_t>(piece.row_begin + row) * row_bytes +
                            static_cast<std::size_t>(piece.col_begin) * 2,
                        piece.data.values.data() + static_cast<std::size_t>(row) * width,
                        width
                    );
                }
            }
            EXPECT_TRUE(got == want);
        }
        const auto unknown = ask<messages::WorkerTensor>(messages::WorkerReadTensor{
            .call = CallId{3}, .name = "model.layers.1.self_attn.q_proj.weigth"});
        EXPECT_EQ(unknown.front().verdict.code, ErrorCode::kNotFound);
    }
}

TEST_F(UpdaterTest, AnAnswerIsReadableWhateverNameWasAskedFor) {
    open(1);
    const std::string name = std::string(255, 'x') + "\xc3\xa9";  // its 256th byte is half of one
    const auto unknown =
        ask<messages::WorkerTensor>(messages::WorkerReadTensor{.call = CallId{1}, .name = name});
    ASSERT_EQ(unknown.size(), 1u);
    EXPECT_EQ(unknown.front().verdict.code, ErrorCode::kNotFound);
}

TEST_F(UpdaterTest, AVoteIsReadableWhateverTheSourceQuotes) {
    open(1);
    spec_.source.kind = messages::SourceKind::kDistributed;
    spec_.source.group = "g";
    const std::string dtype = std::string(63, 'x') + "\xc3\xa9";  // quoted up to its 64th byte
    spec_.source.tensors = {{.name = "model.norm.weight", .dtype = dtype, .shape = {128}}};
    const std::vector<messages::WorkerStaged> votes = stage("");
    ASSERT_EQ(votes.size(), 1u);
    EXPECT_EQ(votes.front().outcome.code, ErrorCode::kInvalidArgument);
    ASSERT_EQ(votes.front().outcome.problems.size(), 1u);
    EXPECT_NE(votes.front().outcome.problems.front().find("x'"), std::string::npos)
        << votes.front().outcome.problems.front();
}

TEST(UpdaterLimits, ATensorThatNoMessageHoldsIsRefused) {
    const test::TempDir dir;
    Json config = Json::parse(std::ifstream(model_dir("stories") + "/config.json"));
    config["vocab_size"] = 1 << 22;  // of 128 columns of 2 bytes: 1 GiB
    dir.write("config.json", config.dump());
    ReplicaOptions options;
    options.engine.model_dir = dir.path();
    options.engine.awaits_weights = true;
    options.engine.max_total_tokens = 64;
    const auto replica = TestReplica::make(options);
    ASSERT_TRUE(replica) << replica.error().message;
    Pace pace(1.0);
    FaultPoint fault_point("test");
    Updater updater((*replica)->root(), pace, fault_point);
    const auto answers = updater.obey(encode(messages::WorkerReadTensor{
        .call = CallId{1}, .name = "model.embed_tokens.weight"}));
    ASSERT_TRUE(answers && answers->size() == 1);
    const auto answer =
        decode<messages::WorkerTensor>(answers->front(), messages::UnknownFields::kRefuse);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->verdict.code, ErrorCode::kTooLarge);
    EXPECT_NE(answer->verdict.message.find("1073741824 bytes"), std::string::npos)
        << answer->verdict.message;
}

// ---- memory ----

const messages::TagMemory& of_tag(const messages::WorkerMemoryDone& done, messages::MemoryTag tag) {
    return done.tags.at(static_cast<std::size_t>(tag));
}

TEST_F(UpdaterTest, P8_ReleasedMemoryGoesBackAndComesAgainAtTheSameAddress) {
    open(2);
    expect_generates_as("stories");
    const std::byte* const address = replica_->engine(0).weights()->live_data();
    const auto released = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{1},
        .action = messages::MemoryAction::kRelease,
        .tags = {messages::MemoryTag::kWeights, messages::MemoryTag::kKvCache}});
    for (const messages::WorkerMemoryDone& done : released) {
        EXPECT_EQ(done.verdict.code, std::nullopt);
        for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
            EXPECT_EQ(of_tag(done, tag).state, messages::MemoryState::kReleased);
            EXPECT_EQ(of_tag(done, tag).resident_bytes, 0);
            EXPECT_GT(of_tag(done, tag).freed_bytes, 0) << name_of(tag);
        }
        EXPECT_EQ(of_tag(done, messages::MemoryTag::kWeights).host_bytes, 0);
    }
    const auto resumed = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{2},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kKvCache, messages::MemoryTag::kWeights}});
    for (const messages::WorkerMemoryDone& done : resumed) {
        for (const messages::MemoryTag tag : messages::kAllMemoryTags)
            EXPECT_EQ(of_tag(done, tag).state, messages::MemoryState::kResident);
    }
    EXPECT_EQ(replica_->engine(0).weights()->live_data(), address);
    EXPECT_FALSE(replica_->engine(0).describe().has_weights);
    // New weights: written in place, as there is nothing to protect.
    EXPECT_EQ(digest_of_votes(stage(model_dir("bard"))), expected_["bard"]["digest"]);
    commit();
    EXPECT_EQ(replica_->engine(0).weights()->live_data(), address);
    EXPECT_EQ(live_digest(), expected_["bard"]["digest"]);
    expect_generates_as("bard");
}

TEST_F(UpdaterTest, KeptWeightsComeBackBitForBit) {
    open(2);
    const auto released = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{1},
        .action = messages::MemoryAction::kRelease,
        .tags = {messages::MemoryTag::kWeights},
        .keep_weights = true});
    for (const messages::WorkerMemoryDone& done : released) {
        const messages::TagMemory& weights = of_tag(done, messages::MemoryTag::kWeights);
        EXPECT_EQ(weights.resident_bytes, 0);
        EXPECT_GE(weights.host_bytes, weights.freed_bytes);
        EXPECT_EQ(
            of_tag(done, messages::MemoryTag::kKvCache).state, messages::MemoryState::kResident
        );
    }
    const auto resumed = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{2},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kWeights}});
    EXPECT_EQ(of_tag(resumed[0], messages::MemoryTag::kWeights).host_bytes, 0);
    EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
    expect_generates_as("stories");
}

TEST_F(UpdaterTest, ATagThatIsInThatStateAlreadyStaysAsItIs) {
    open(1);
    const messages::WorkerMemory order{
        .call = CallId{1},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kWeights}};
    EXPECT_EQ(ask<messages::WorkerMemoryDone>(order)[0].verdict.code, std::nullopt);
    EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
}

}  // namespace
}  // namespace pitstop::tp_worker
