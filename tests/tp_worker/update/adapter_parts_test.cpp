// Updates that begin with a version of an adapter: partial ones, sparse ones and rollbacks.
#include "messages/version_digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/update/adapted_fixture.h"
#include "tests/tp_worker/update/adapter_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

const std::string kQ0 = "model.layers.0.self_attn.q_proj.lora_B.weight";
const std::string kDown1 = "model.layers.1.mlp.down_proj.lora_A.weight";

class AdapterParts : public Adapted {
  protected:
    void open_and_load() {
        open("qwen3_tied", kRanksMax);
        if (IsSkipped() || HasFatalFailure()) return;
        tensors_ = tensors_of("qwen3_tied/all");
        ASSERT_TRUE(tensors_.contains(kQ0) && tensors_.contains(kDown1));
        const auto votes = stage_ok(from_disk(adapter_dir("qwen3_tied/all")));
        digests_ = digests_of(votes);
        config_digest_ = votes.at(0).adapter_config_digest;
        first_ = commit();
    }
    std::vector<messages::WorkerStaged> stage_ok(
        messages::UpdateSpec spec,
        std::optional<messages::AdapterId> begins_as = std::nullopt,
        bool is_rollback = false
    ) {
        auto votes = stage(std::move(spec), begins_as, is_rollback);
        EXPECT_EQ(votes.size(), updaters_.size());
        for (const auto& vote : votes)
            EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
        return votes;
    }
    using Digests = std::vector<std::vector<messages::PartDigest>>;
    static Digests digests_of(const std::vector<messages::WorkerStaged>& votes) {
        Digests digests;
        for (const auto& vote : votes) digests.push_back(vote.digests);
        return digests;
    }
    void expect_part_refused(messages::UpdateSpec spec, ErrorCode code, const std::string& why) {
        spec.partial = true;
        expect_votes_no(stage(std::move(spec), first_), code, why);
    }
    // The digests and logits of an adapter that is loaded whole.
    std::pair<Digests, std::vector<float>> of_whole(const Tensors& tensors) {
        messages::UpdateSpec spec = from_call(tensors);
        spec.adapter_config = text_of(load_json(adapter_dir("qwen3_tied/all/adapter_config.json")));
        const auto votes = stage_ok(std::move(spec));
        const messages::AdapterId id = commit();
        return {digests_of(votes), logits_of(kPrompt, id)};
    }
    void move(const messages::WorkerAdapters& order) {
        for (const auto& updater : updaters_) ASSERT_TRUE(updater->handle_order(encode(order)));
    }
    // Elements of one tensor.
    messages::UpdateSpec sparse_of(
        const std::vector<std::int32_t>& indices, const std::vector<float>& values
    ) {
        messages::UpdateSpec spec;
        spec.adapter = "one";
        spec.partial = true;
        spec.base_digest = std::string(32, 'a');  // the scheduler has compared it
        spec.source.kind = messages::SourceKind::kTensors;
        spec.source.format = messages::TensorFormat::kSparse;
        spec.source.tensors.push_back({.name = kQ0, .dtype = "F32", .shape = tensors_[kQ0].shape});
        spec.source.num_updates = {std::ssize(indices)};
        messages::RankPayload payload;
        payload.data.values.resize(indices.size() * sizeof indices[0]);
        std::memcpy(payload.data.values.data(), indices.data(), payload.data.values.size());
        const std::vector<std::uint8_t> bytes = bytes_of(values);
        payload.data.values.insert(payload.data.values.end(), bytes.begin(), bytes.end());
        spec.source.payloads.push_back(std::move(payload));
        return spec;
    }
    static messages::UpdateSpec rollback() {
        messages::UpdateSpec spec;
        spec.adapter = "one";
        spec.partial = true;
        return spec;
    }

    const std::vector<TokenId> kPrompt{TokenId{3}, TokenId{9}, TokenId{27}, TokenId{5}};
    Tensors tensors_{};
    Digests digests_{};
    std::string config_digest_{};
    messages::AdapterId first_{};
};

TEST_F(AdapterParts, P10_APartialUpdateIsTheVersionWithTheseTensorsReplaced) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::vector<float> before = logits_of(kPrompt, first_);
    Tensors changed;
    for (const std::string& name : {kQ0, kDown1}) {
        for (float& value : tensors_[name].values) value = 0.5F - value;
        changed[name] = tensors_[name];
    }
    messages::UpdateSpec spec = from_call(changed);
    spec.partial = true;
    const auto votes = stage_ok(spec, first_);
    EXPECT_EQ(votes[0].outcome.tensors, 2);
    EXPECT_EQ(votes[0].adapter_config_digest, config_digest_);
    const messages::AdapterId second = commit();
    EXPECT_EQ(logits_of(kPrompt, first_), before) << "the version before is as it was";
    const std::vector<float> logits = logits_of(kPrompt, second);
    EXPECT_NE(logits, before);
    const auto [digests, of_all] = of_whole(tensors_);
    EXPECT_EQ(digests_of(votes), digests);
    EXPECT_EQ(logits, of_all);
}

TEST_F(AdapterParts, P10_ASparseUpdateChangesItsElements) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::vector<std::int32_t> indices{0, 3, 17};
    const std::vector<float> values{0.25F, -2.0F, 1.5F};
    const auto votes = stage_ok(sparse_of(indices, values), first_);
    const messages::AdapterId second = commit();
    for (std::size_t i = 0; i < indices.size(); ++i)
        tensors_[kQ0].values[static_cast<std::size_t>(indices[i])] = values[i];
    const std::vector<float> logits = logits_of(kPrompt, second);
    const auto [digests, of_all] = of_whole(tensors_);
    EXPECT_EQ(digests_of(votes), digests);
    EXPECT_EQ(logits, of_all);
}

// A manifest has the sender's names. The vote says which tensors they mean.
TEST_F(AdapterParts, P10_TheVoteNamesTheTensorsOfAManifest) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::string wrapped = "base_model.model." + kQ0;
    messages::UpdateSpec spec = from_call(tensors_);
    spec.adapter_config = text_of(load_json(adapter_dir("qwen3_tied/all/adapter_config.json")));
    spec.manifest = {{.name = wrapped}, {.name = kDown1}};
    for (const auto& vote : stage_ok(spec))
        EXPECT_EQ(vote.declared, (std::map<std::string, std::string>{{wrapped, kQ0}}));
    commit();
}

// A session that cannot be opened has no tensors that could be missing.
TEST_F(AdapterParts, ASessionWithABadConfigurationReportsNoMissingTensor) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    messages::UpdateSpec session;
    session.adapter = "one";
    session.source.kind = messages::SourceKind::kBuckets;
    session.adapter_config = "{}";
    const messages::UpdateId update{++last_update_};
    for (const auto& updater : updaters_) {
        const auto opened = tp_worker::ask<messages::WorkerFilled>(
            *updater, messages::WorkerStage{.update = update, .spec = session}
        );
        ASSERT_TRUE(opened);
        EXPECT_FALSE(opened->outcome.ok);
        EXPECT_EQ(opened->outcome.num_missing, 0);
        EXPECT_TRUE(opened->outcome.missing.empty()) << opened->outcome.missing.front();
        EXPECT_TRUE(tp_worker::ask<messages::WorkerDropped>(
            *updater, messages::WorkerDrop{.update = update}
        ));
    }
}

// A sparse bucket outside a partial session has nothing to change. The worker checks this itself.
TEST_F(AdapterParts, P2_ASparseBucketNeedsAPartialSession) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    messages::UpdateSpec session;
    session.adapter = "one";
    session.base_digest = std::string(32, 'a');
    session.source.kind = messages::SourceKind::kBuckets;
    session.adapter_config = text_of(load_json(adapter_dir("qwen3_tied/all/adapter_config.json")));
    const messages::UpdateId update{++last_update_};
    const messages::WorkerFill fill{
        .update = update,
        .bucket = 1,
        .source = sparse_of({0}, {0.5F}).source,
        .timeout_ms = 10'000};
    const std::string why = "the session is not partial";
    for (const auto& updater : updaters_) {
        const auto opened = tp_worker::ask<messages::WorkerFilled>(
            *updater, messages::WorkerStage{.update = update, .spec = session}
        );
        ASSERT_TRUE(opened && opened->outcome.ok);
        const auto filled = tp_worker::ask<messages::WorkerFilled>(*updater, fill);
        ASSERT_TRUE(filled);
        ASSERT_FALSE(filled->outcome.ok);
        EXPECT_EQ(filled->outcome.code, ErrorCode::kFailedPrecondition);
        EXPECT_NE(filled->outcome.problems.front().find(why), std::string::npos)
            << filled->outcome.problems.front();
        EXPECT_TRUE(tp_worker::ask<messages::WorkerDropped>(
            *updater, messages::WorkerDrop{.update = update}
        ));
    }
}

TEST_F(AdapterParts, RefusesWhatIsNoPartOfTheVersionByName) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    messages::UpdateSpec spec = from_call({{kQ0, {.shape = {2, 2}, .values = {1, 2, 3, 4}}}});
    expect_part_refused(spec, ErrorCode::kInvalidArgument, "has shape [2, 2]");
    spec = from_call({{"model.layers.0.self_attn.z_proj.lora_A.weight", tensors_[kQ0]}});
    expect_part_refused(
        spec, ErrorCode::kInvalidArgument, "z_proj.lora_A.weight' is no tensor of the adapter"
    );
    spec = from_call({{kQ0, tensors_[kQ0]}});
    Json config = load_json(adapter_dir("qwen3_tied/all/adapter_config.json"));
    config["lora_alpha"] = 33;
    spec.adapter_config = text_of(config);
    expect_part_refused(
        spec, ErrorCode::kInvalidArgument, "is partial and brings another adapter_config"
    );
    // A directory with another configuration, and one with none.
    const test::TempDir dir;
    dir.copy_from(adapter_dir("qwen3_tied/all"));
    std::ofstream(dir.path("adapter_config.json")) << text_of(config);
    expect_part_refused(
        from_disk(dir.path()), ErrorCode::kInvalidArgument, "brings another adapter_config"
    );
    // A file that cannot be read is not absent: it may be another configuration.
    fs::remove(dir.path("adapter_config.json"));
    fs::create_symlink("adapter_config.json", dir.path("adapter_config.json"));
    expect_part_refused(
        from_disk(dir.path()), ErrorCode::kInvalidArgument, "adapter_config.json': Too many levels"
    );
    fs::remove(dir.path("adapter_config.json"));
    spec = from_disk(dir.path());
    spec.partial = true;
    EXPECT_EQ(digests_of(stage_ok(spec, first_)), digests_);
    commit();
    spec = from_call({{kQ0, tensors_[kQ0]}});
    spec.partial = true;
    expect_votes_no(
        stage(spec, messages::AdapterId{999}),
        ErrorCode::kDataLoss,
        "does not have the version that the update changes"
    );
}

TEST_F(AdapterParts, P2_OneThatBringsNoTensorIsRefused) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    expect_part_refused(
        from_call({}),
        ErrorCode::kInvalidArgument,
        "the update of adapter 'one' is partial and brings no tensor"
    );
    EXPECT_EQ(digests_of(stage_ok(sparse_of({}, {}), first_)), digests_) << "a step may be zero";
}

TEST_F(AdapterParts, P2_ARollbackHasTheBytesOfTheVersionWhereverTheyAre) {
    open_and_load();
    if (IsSkipped() || HasFatalFailure()) return;
    for (const auto& updater : updaters_)
        updater->adapters().limit({.bytes_max = 16 << 20, .directory = testing::TempDir()});
    const std::vector<float> before = logits_of(kPrompt, first_);
    load(adapter_dir("qwen3_tied/bf16"));
    const auto votes = stage_ok(rollback(), first_, /*is_rollback=*/true);
    EXPECT_EQ(digests_of(votes), digests_);
    EXPECT_EQ(votes[0].outcome.tensors, 0);
    EXPECT_EQ(votes[0].adapter_config_digest, config_digest_);
    const messages::AdapterId back = commit();
    EXPECT_EQ(logits_of(kPrompt, back), before);
    move({.evict = {first_}});
    const auto from_file = stage_ok(rollback(), first_, /*is_rollback=*/true);
    EXPECT_EQ(digests_of(from_file), digests_);
    EXPECT_EQ(logits_of(kPrompt, commit()), before);
    for (const auto& updater : updaters_)
        ASSERT_TRUE(updater->handle_order(encode(messages::WorkerForget{.adapters = {first_}})));
    expect_votes_no(
        stage(rollback(), first_, /*is_rollback=*/true),
        ErrorCode::kDataLoss,
        "does not have the version"
    );
    EXPECT_EQ(logits_of(kPrompt, back), before);
}

}  // namespace
}  // namespace pitstop::tp_worker
