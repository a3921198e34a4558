// Updates on real engines: a scheduler's orders, and their results.
#include "tp_worker/update/updater.h"

#include "tests/checkpoint/safetensors_file.h"
#include "tests/tp_worker/update/stored_tensors.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

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
    // The checkpoint has only the final norm, as in bard.
    const test::SafetensorsFile bard(model_dir("bard"));
    const std::string name = "model.norm.weight";
    test::SafetensorsFile small;
    small.add(name, "BF16", bard.shape_of(name), bard.bytes_of(name));
    small.write(dir);

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
        const auto now = updaters_[0]->handle_order(encode(call));
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

// Reads of an adopted copy, which the next stage replaces.
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
    ASSERT_TRUE(updaters_[0]->handle_order(encode(messages::WorkerCommit{
        .update = messages::UpdateId{last_update_}, .epoch = Epoch{++epoch_}})));
    order(stage_order(model_dir("stories")));  // writes where the adopted copy was
    for (const messages::WorkerDigests& answer : wait_for<messages::WorkerDigests>(kNumReads)) {
        EXPECT_EQ(answer.epoch, Epoch{epoch_ - 1});
        EXPECT_EQ(digest_of(answer), expected_["bard"]["digest"]);
    }
    drop();
}

TEST_F(UpdaterTest, MemoryThatADirectUpdateWritesIsNotRead) {
    open(1);
    order(stage_order(model_dir("bard"), messages::UpdateMode::kDirect));
    const auto digest =
        updaters_[0]->handle_order(encode(messages::WorkerDigest{.call = CallId{1}}));
    ASSERT_TRUE(digest && digest->size() == 1);
    EXPECT_EQ(
        decode<messages::WorkerDigests>(digest->front(), messages::UnknownFields::kRefuse)
            ->verdict.code,
        ErrorCode::kFailedPrecondition
    );
    const auto tensor = updaters_[0]->handle_order(encode(messages::WorkerReadTensor{
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
    EXPECT_FALSE(updaters_[0]->handle_order(encode(messages::WorkerCommit{
        .update = messages::UpdateId{5}, .epoch = Epoch{2}})));
    EXPECT_FALSE(updaters_[0]->handle_order(encode(messages::WorkerCommit{
        .update = messages::UpdateId{5}, .epoch = Epoch{2}, .rollback = true})));
    stage(model_dir("bard"));
    messages::WorkerStage second;
    second.update = messages::UpdateId{99};
    second.spec.source.path = model_dir("bard");
    EXPECT_FALSE(updaters_[0]->handle_order(encode(second)));
}

TEST_F(UpdaterTest, ATensorIsReadBackFromItsShards) {
    const std::map<std::string, StoredTensor> tensors = tensors_of("stories");
    for (const int tp : {1, 2, 4}) {
        updaters_.clear();
        open(tp);
        for (const std::string name :
             {"model.embed_tokens.weight",
              "model.layers.1.self_attn.k_proj.weight",
              "model.layers.2.mlp.down_proj.weight",
              "model.norm.weight"}) {
            SCOPED_TRACE(name + " on " + std::to_string(tp));
            const auto& [shape, want] = tensors.at(name);
            const std::size_t row_bytes = static_cast<std::size_t>(shape.back()) * 2;
            Bytes got(want.size(), 0xaa);
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
    const std::string name = std::string(255, 'x') + "\xc3\xa9";  // byte 256 is half a character
    const auto unknown =
        ask<messages::WorkerTensor>(messages::WorkerReadTensor{.call = CallId{1}, .name = name});
    ASSERT_EQ(unknown.size(), 1u);
    EXPECT_EQ(unknown.front().verdict.code, ErrorCode::kNotFound);
}

TEST_F(UpdaterTest, AVoteIsReadableWhateverTheSourceQuotes) {
    open(1);
    spec_.source.kind = messages::SourceKind::kDistributed;
    spec_.source.group = "g";
    const std::string dtype = std::string(63, 'x') + "\xc3\xa9";  // errors quote up to 64 bytes
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
    Json config = load_json(model_dir("stories") + "/config.json");
    config["vocab_size"] = 1 << 22;  // rows of 128 columns of 2 bytes: 1 GiB
    dir.write("config.json", text_of(config));
    ReplicaOptions options;
    options.engine.model_dir = dir.path();
    options.engine.awaits_weights = true;
    options.engine.max_total_tokens = 64;
    const auto replica = TestReplica::make(options);
    ASSERT_TRUE(replica) << replica.error().message;
    Pace pace(1.0);
    FaultPoint fault_point("test");
    Updater updater((*replica)->root(), pace, fault_point);
    const auto answers = updater.handle_order(encode(messages::WorkerReadTensor{
        .call = CallId{1}, .name = "model.embed_tokens.weight"}));
    ASSERT_TRUE(answers && answers->size() == 1);
    const auto answer =
        decode<messages::WorkerTensor>(answers->front(), messages::UnknownFields::kRefuse);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->verdict.code, ErrorCode::kTooLarge);
    EXPECT_NE(answer->verdict.message.find("1073741824 bytes"), std::string::npos)
        << answer->verdict.message;
}

}  // namespace
}  // namespace pitstop::tp_worker
