// Partial updates cost only their own bytes, on the CPU and on a GPU. A stage may only leave out
// tensors that the target already contains, whatever happened before. The compared digests are
// computed from memory.
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/update/stored_tensors.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

const std::string kNorm = "model.norm.weight";
const std::string kDown = "model.layers.0.mlp.down_proj.weight";

class PartialUpdate : public OneRankUpdaterTest, public testing::WithParamInterface<DeviceKind> {
  protected:
    void SetUp() override {
        if (!has_device(GetParam())) GTEST_SKIP() << why_no_gpu();
        open(options_on(GetParam()));
        for (const auto& [name, tensor] : stories_) whole_bytes_ += std::ssize(tensor.bytes);
    }

    using Tensors = std::vector<std::pair<std::string, const Bytes*>>;
    enum class Form { kWhole, kSparse };
    // Stages these tensors, and leaves the others unchanged.
    messages::WorkerStaged stage(
        const Tensors& tensors,
        messages::UpdateMode mode = messages::UpdateMode::kStaged,
        Form form = Form::kWhole
    ) {
        messages::UpdateSpec spec;
        spec.mode = mode;
        spec.partial = true;
        spec.allow_nonfinite = allow_nonfinite_;
        messages::WeightSource& source = spec.source;
        source.kind = messages::SourceKind::kTensors;
        source.format = form == Form::kSparse ? messages::TensorFormat::kSparse
                                              : messages::TensorFormat::kFlattened;
        source.payloads.resize(1);
        Bytes& payload = source.payloads[0].data.values;
        if (tensors.empty()) {  // one that the model does not use: the update changes nothing
            source.tensors.push_back(
                {.name = "model.layers.0.rotary_emb.inv_freq", .dtype = "BF16", .shape = {1}}
            );
            if (form == Form::kSparse) source.num_updates.push_back(0);
            if (form == Form::kWhole) payload.resize(2);
        }
        for (const auto& [name, bytes] : tensors) {
            source.tensors.push_back(
                {.name = name, .dtype = "BF16", .shape = stories_.at(name).shape}
            );
            if (form == Form::kSparse) {
                const auto num = static_cast<std::int32_t>(bytes->size() / 2);
                source.num_updates.push_back(num);
                for (std::int32_t i = 0; i < num; ++i) {
                    for (int byte = 0; byte < 4; ++byte)
                        payload.push_back(static_cast<std::uint8_t>(i >> (8 * byte)));
                }
            }
            payload.insert(payload.end(), bytes->begin(), bytes->end());
        }
        return OneRankUpdaterTest::stage(std::move(spec));
    }
    void change_weights_memory(messages::MemoryAction action) {
        const auto done = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
            .call = CallId{1},
            .action = action,
            .tags = {messages::MemoryTag::kWeights},
            .keep_weights = true});
        EXPECT_EQ(done.verdict.code, std::nullopt) << done.verdict.message;
    }
    // Stages and commits, and expects memory to have the digests of the vote. Returns the number of
    // bytes written.
    std::int64_t update(
        const Tensors& tensors,
        messages::UpdateMode mode = messages::UpdateMode::kStaged,
        Form form = Form::kWhole
    ) {
        const messages::WorkerStaged vote = stage(tensors, mode, form);
        EXPECT_TRUE(vote.outcome.ok)
            << (vote.outcome.problems.empty() ? "" : vote.outcome.problems[0]);
        commit();
        EXPECT_EQ(vote.digests, live_digests());
        return vote.outcome.bytes;
    }
    // Expects each live tensor to be bard's if it is listed, otherwise stories'.
    void expect_live(const std::map<std::string, std::string>& of_bard) {
        for (const messages::PartDigest& part : live_digests()) {
            const std::string model = of_bard.contains(part.name) ? "bard" : "stories";
            EXPECT_EQ(to_hex({part.lane0, part.lane1}), expected_[model]["tensors"][part.name])
                << part.name << " should be as in " << model;
        }
    }
    std::int64_t bytes_of(const std::string& name) { return std::ssize(stories_.at(name).bytes); }
    const Bytes* bard(const std::string& name) { return &bard_.at(name).bytes; }
    const Bytes* stories(const std::string& name) { return &stories_.at(name).bytes; }

    const std::map<std::string, StoredTensor> stories_ = tensors_of("stories");
    const std::map<std::string, StoredTensor> bard_ = tensors_of("bard");
    const Json expected_ = load_json("tests/data/golden/digests.json")["models"];
    std::int64_t whole_bytes_ = 0;
    bool allow_nonfinite_ = false;
};

INSTANTIATE_TEST_SUITE_P(
    Devices,
    PartialUpdate,
    testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
    [](const auto& device) { return std::string(device.param == DeviceKind::kCpu ? "Cpu" : "Gpu"); }
);

// A step of a trainer that sends differences may change nothing. A trainer that sends nothing has
// most likely filtered its tensors by names that none of them has.
TEST_P(PartialUpdate, P2_OneThatBringsNoTensorIsRefusedAndChangesNothing) {
    const auto expect_refused = [this](const messages::WorkerStaged& vote) {
        ASSERT_FALSE(vote.outcome.ok);
        EXPECT_EQ(vote.outcome.code, ErrorCode::kInvalidArgument);
        const std::string& why = vote.outcome.problems.front();
        EXPECT_NE(why.find("the update of the model is partial and brings no tensor"), why.npos);
        EXPECT_EQ(vote.outcome.phase, messages::UpdatePhase::kIdle) << "nothing was written";
        drop();
        expect_live({});
    };
    messages::UpdateSpec spec;
    spec.partial = true;
    spec.source.kind = messages::SourceKind::kTensors;
    spec.source.format = messages::TensorFormat::kFlattened;
    spec.source.payloads.resize(1);
    const messages::WeightSource nothing = spec.source;
    expect_refused(OneRankUpdaterTest::stage(spec));
    spec.mode = messages::UpdateMode::kDirect;
    expect_refused(OneRankUpdaterTest::stage(spec));
    spec.mode = messages::UpdateMode::kStaged;
    spec.source = {.kind = messages::SourceKind::kBuckets};
    messages::WeightSource one = nothing;
    one.tensors = {{.name = kNorm, .dtype = "BF16", .shape = stories_.at(kNorm).shape}};
    one.payloads[0].data.values = *bard(kNorm);
    const auto end_of_session = [&](const std::vector<messages::WeightSource>& buckets) {
        const messages::WorkerStage open{
            .update = messages::UpdateId{++last_update_}, .spec = spec};
        EXPECT_TRUE(ask<messages::WorkerFilled>(open).outcome.ok);
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            const messages::WorkerFill fill{
                .update = messages::UpdateId{last_update_},
                .bucket = static_cast<std::int64_t>(i) + 1,
                .source = buckets[i]};
            EXPECT_TRUE(ask<messages::WorkerFilled>(fill).outcome.ok) << i;
        }
        return ask<messages::WorkerStaged>(messages::WorkerFinish{
            .update = messages::UpdateId{last_update_}});
    };
    expect_refused(end_of_session({}));
    expect_refused(end_of_session({nothing, nothing}));
    EXPECT_TRUE(end_of_session({nothing, one, nothing}).outcome.ok);
    commit();
    expect_live({{kNorm, ""}});
    spec.base_digest = std::string(32, 'a');  // the scheduler has compared it
    messages::WeightSource unchanged = one;
    unchanged.format = messages::TensorFormat::kSparse;
    unchanged.num_updates = {0};
    unchanged.payloads[0].data.values.clear();
    EXPECT_TRUE(end_of_session({unchanged}).outcome.ok);
    commit();
    expect_live({{kNorm, ""}});
}

TEST_P(PartialUpdate, P10_CostsItsOwnBytesAndThoseOfTheOneBefore) {
    EXPECT_EQ(update({{kNorm, bard(kNorm)}}), whole_bytes_) << "the other copy held nothing";
    EXPECT_EQ(update({{kDown, bard(kDown)}}), bytes_of(kDown) + bytes_of(kNorm));
    EXPECT_EQ(update({{kDown, stories(kDown)}}), bytes_of(kDown));
    EXPECT_EQ(update({{kNorm, stories(kNorm)}}), bytes_of(kNorm) + bytes_of(kDown));
    EXPECT_EQ(update({}), bytes_of(kNorm));
    EXPECT_EQ(update({}), 0);
    expect_live({});
}

TEST_P(PartialUpdate, P10_OfElementsCostsItsTensors) {
    update({{kNorm, bard(kNorm)}});
    EXPECT_EQ(
        update({{kDown, bard(kDown)}}, messages::UpdateMode::kStaged, Form::kSparse),
        bytes_of(kDown) + bytes_of(kNorm)
    );
    EXPECT_EQ(
        update({{kDown, bard(kDown)}}, messages::UpdateMode::kStaged, Form::kSparse),
        bytes_of(kDown)
    );
    expect_live({{kNorm, ""}, {kDown, ""}});
}

TEST_P(PartialUpdate, DirectOnesLookAtTheirOwnBytesAlone) {
    EXPECT_EQ(update({{kNorm, bard(kNorm)}}, messages::UpdateMode::kDirect), whole_bytes_);
    EXPECT_EQ(update({{kDown, bard(kDown)}}, messages::UpdateMode::kDirect), bytes_of(kDown));
    EXPECT_EQ(update({{kNorm, stories(kNorm)}}), whole_bytes_);
    EXPECT_EQ(update({{kDown, stories(kDown)}}, messages::UpdateMode::kDirect), bytes_of(kDown));
    EXPECT_EQ(update({}), bytes_of(kDown) + bytes_of(kNorm));
    expect_live({});
}

TEST_P(PartialUpdate, P2_ARollbackIsNotForgotten) {
    update({{kNorm, bard(kNorm)}});
    commit(/*rollback=*/true);
    expect_live({});
    EXPECT_EQ(update({{kDown, bard(kDown)}}), bytes_of(kDown) + bytes_of(kNorm));
    expect_live({{kDown, ""}});
    commit(/*rollback=*/true);
    expect_live({});
}

TEST_P(PartialUpdate, TensorsThatADroppedStageWroteAreWrittenAgain) {
    update({{kNorm, bard(kNorm)}});
    Bytes broken = *bard(kDown);
    broken[2 * 17] = 0x80;
    broken[2 * 17 + 1] = 0x7f;  // infinity
    EXPECT_FALSE(stage({{kDown, &broken}, {kNorm, stories(kNorm)}}).outcome.ok);
    drop();
    EXPECT_EQ(update({}), bytes_of(kDown) + bytes_of(kNorm));
    expect_live({{kNorm, ""}});
}

TEST_P(PartialUpdate, MemoryThatCameAgainIsFilledAgain) {
    update({{kNorm, bard(kNorm)}});
    update({});
    change_weights_memory(messages::MemoryAction::kRelease);
    change_weights_memory(messages::MemoryAction::kResume);
    EXPECT_EQ(update({{kDown, bard(kDown)}}), whole_bytes_);
    expect_live({{kNorm, ""}, {kDown, ""}});
}

// A sender's memory replaced the copy, and then the update was dropped.
TEST_P(PartialUpdate, AdoptedMemoryIsNotTakenForTheCopyBefore) {
    if (GetParam() == DeviceKind::kCuda) GTEST_SKIP() << "a GPU's copies are not adopted";
    update({{kNorm, bard(kNorm)}});
    update({});
    Arena& other = replica_->root().weights()->target(messages::UpdateMode::kStaged);
    const int fd = ::memfd_create("adopted", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(fd, other.bytes()), 0);
    ASSERT_TRUE(other.adopt(fd));
    ::close(fd);
    EXPECT_EQ(update({}), whole_bytes_);
    expect_live({{kNorm, ""}});
}

TEST_P(PartialUpdate, KeptTensorsMustBeFiniteToo) {
    Bytes broken = *bard(kNorm);
    broken[2 * 17] = 0x80;
    broken[2 * 17 + 1] = 0x7f;  // infinity
    allow_nonfinite_ = true;
    update({{kNorm, &broken}});
    EXPECT_EQ(update({}), bytes_of(kNorm));
    EXPECT_EQ(update({}), 0);
    allow_nonfinite_ = false;
    EXPECT_FALSE(stage({{kDown, bard(kDown)}}).outcome.ok);
    drop();
    update({{kNorm, bard(kNorm)}});
    expect_live({{kNorm, ""}});
}

// After updates, drops, rollbacks and releases in any order, the votes' digests are those of
// memory, and each tensor is the last one sent.
TEST_P(PartialUpdate, P2_P10_HoldInAnyOrder) {
    const int num_turns = GetParam() == DeviceKind::kCpu ? 300 : 60;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : stories_) names.push_back(name);
    std::minstd_rand random(17);
    const auto draw = [&](std::size_t num) { return static_cast<std::size_t>(random()) % num; };
    using Version = std::map<std::string, std::string>;  // the tensors that are bard's
    Version live;
    Version retained;
    bool has_retained = false;
    for (int turn = 0; turn < num_turns; ++turn) {
        SCOPED_TRACE(turn);
        if (draw(16) == 0) {
            change_weights_memory(messages::MemoryAction::kRelease);
            change_weights_memory(messages::MemoryAction::kResume);
            has_retained = false;
        } else if (has_retained && draw(5) == 0) {
            commit(/*rollback=*/true);
            std::swap(live, retained);
        } else {
            Tensors tensors;
            Version next = live;
            for (std::size_t num = draw(4); num > 0; --num) {
                const std::string& name = names[draw(names.size())];
                if (std::ranges::count(tensors, name, &Tensors::value_type::first) != 0) continue;
                const bool is_bard = draw(2) == 0;
                tensors.emplace_back(name, is_bard ? bard(name) : stories(name));
                next.erase(name);
                if (is_bard) next[name];
            }
            const auto form = draw(3) == 0 ? Form::kSparse : Form::kWhole;
            const auto mode =
                draw(4) == 0 ? messages::UpdateMode::kDirect : messages::UpdateMode::kStaged;
            if (mode == messages::UpdateMode::kStaged && draw(4) == 0) {
                EXPECT_TRUE(stage(tensors, mode, form).outcome.ok);
                drop();
                has_retained = false;
            } else {
                update(tensors, mode, form);
                retained = live;
                live = next;
                has_retained = mode == messages::UpdateMode::kStaged;
            }
        }
        if (HasFailure()) return;
    }
    expect_live(live);
}

}  // namespace
}  // namespace pitstop::tp_worker
