// Updates of a model with tied embeddings: all pass through a stage, whatever their source.
#include "base/isa.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/weights/checkpoint_tensors.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_stage.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pitstop::tp_worker {
namespace {

const std::string kEmbedding(kEmbeddingName);
const std::string kHead(kHeadName);

std::string tied_dir() { return source_dir() + "/tests/data/golden/qwen3_tied"; }

std::string shown(const std::vector<std::string>& problems) {
    return std::accumulate(problems.begin(), problems.end(), std::string());
}

// A copy of the bytes in which one element differs.
std::string changed(std::string bytes, std::size_t element) {
    bytes[2 * element + 1] = static_cast<char>(bytes[2 * element + 1] ^ 0x01);
    return bytes;
}

// A stage of one rank over the model's own weights.
class StageTest : public testing::Test {
  protected:
    explicit StageTest(int rank = 0, int tp = 1)
        : layout_(*layout_of(config_, static_cast<Rank>(rank), tp)) {
        const checkpoint::Checkpoint checkpoint = *checkpoint::Checkpoint::open(tied_dir());
        live_.resize(static_cast<std::size_t>(layout_.bytes()));
        target_.resize(live_.size(), std::byte{0xaa});
        EXPECT_TRUE(load_weights(
            layout_, {layout_, checkpoint}, tied_dir(), *kernels::reference_ops(), {}, live_.data()
        ));
        for (const checkpoint::StoredTensor& stored : checkpoint.tensors()) {
            std::string bytes(static_cast<std::size_t>(stored.bytes), '\0');
            EXPECT_TRUE(checkpoint.read(stored, 0, std::as_writable_bytes(std::span(bytes))));
            sent_.emplace_back(stored.spec, std::move(bytes));
        }
        begin();
    }
    void begin() {
        live_ledger_ = CopyLedger(0, layout_.tensors().size());
        target_ledger_ = CopyLedger(1, layout_.tensors().size());
        stage_ = std::make_unique<WeightStage>(StageArgs{
            .spec = spec_,
            .layout = layout_,
            .config = config_,
            .ops = *kernels::reference_ops(),
            .add_run = digest::add_run_on(IsaLevel::kScalar),
            .target = target_.data(),
            .live = live_.data(),
            .target_ledger = target_ledger_,
            .live_ledger = live_ledger_,
            .target_bytes = layout_.bytes(),
            .pace = pace_,
            .is_dropped = is_dropped_,
            .at = [](std::string_view) {}});
        EXPECT_TRUE(stage_->begin());
    }
    [[nodiscard]] const std::string& embedding() const {
        for (const auto& [spec, bytes] : sent_) {
            if (spec.name == kEmbedding) return bytes;
        }
        return sent_.front().second;
    }
    [[nodiscard]] std::vector<std::int64_t> shape_of(std::string_view name) const {
        const WeightTensor* tensor = layout_.find(name);
        return (tensor != nullptr ? tensor : layout_.find(kEmbedding))->shape;
    }
    Result<> take(const std::vector<std::pair<std::string, std::string>>& tensors) {
        std::vector<Incoming> incoming;
        for (const auto& [name, bytes] : tensors) {
            incoming.push_back(
                {.spec =
                     {.name = name,
                      .dtype = checkpoint::StoredDtype::kBf16,
                      .shape = shape_of(name)},
                 .bytes = {.data = reinterpret_cast<const std::byte*>(bytes.data())}}
            );
        }
        return stage_->stage_tensors(incoming, WeightStage::Expect::kMore);
    }
    // Stages some rows of a tensor, from memory in which its other rows must not be read.
    Result<> place_rows(const std::string& name, const std::string& all, TensorRows rows) {
        const std::vector<std::int64_t> shape = shape_of(name);
        const std::int64_t row_bytes = std::ssize(all) / (shape.size() < 2 ? 1 : shape.front());
        const std::string bytes(
            all,
            static_cast<std::size_t>(rows.begin * row_bytes),
            static_cast<std::size_t>(rows.num * row_bytes)
        );
        const Incoming incoming{
            .spec = {.name = name, .dtype = checkpoint::StoredDtype::kBf16, .shape = shape},
            .bytes = {.data = reinterpret_cast<const std::byte*>(bytes.data())},
            .rows = rows};
        return stage_->stage_tensors(std::span(&incoming, 1), WeightStage::Expect::kMore);
    }
    // Stages all rows of the tensor, at most rows_max in each call.
    Result<> take_by_rows(const std::string& name, const std::string& all, std::int64_t rows_max) {
        const std::vector<std::int64_t> shape = shape_of(name);
        const std::int64_t num_rows = shape.size() < 2 ? 1 : shape.front();
        for (std::int64_t row = 0; row < num_rows; row += rows_max)
            RETURN_IF_ERROR(place_rows(name, all, {row, std::min(rows_max, num_rows - row)}));
        return Ok{};
    }
    void expect_vote_of(const Result<>& finished, const std::vector<std::byte>& resident) {
        const messages::WorkerStaged vote = stage_->vote(finished);
        std::vector<std::byte> all = resident;
        const auto digests = digest_weights(layout_, all.data(), *kernels::reference_ops(), {});
        ASSERT_TRUE(digests.has_value());
        ASSERT_EQ(vote.digests.size(), digests->size());
        for (std::size_t i = 0; i < digests->size(); ++i) {
            EXPECT_EQ(vote.digests[i].lane0, (*digests)[i].lane0) << vote.digests[i].name;
            EXPECT_EQ(vote.digests[i].lane1, (*digests)[i].lane1) << vote.digests[i].name;
        }
    }
    [[nodiscard]] std::pair<std::string, std::string> sent_one(std::size_t i) const {
        return {sent_[i].first.name, sent_[i].second};
    }
    struct Update {
        std::int32_t index = 0;
        bf16 value{};
    };
    Result<> stage_sparse(const std::string& name, const std::vector<Update>& updates) {
        std::vector<std::int32_t> indices;
        std::vector<bf16> values;
        for (const Update& update : updates) {
            indices.push_back(update.index);
            values.push_back(update.value);
        }
        const SparseTensor sparse{
            .spec =
                {.name = name,
                 .dtype = checkpoint::StoredDtype::kBf16,
                 .shape = shape_of(kEmbedding)},
            .indices = reinterpret_cast<const std::byte*>(indices.data()),
            .values = reinterpret_cast<const std::byte*>(values.data()),
            .num = std::ssize(updates)};
        return stage_->stage_sparse(std::span(&sparse, 1));
    }
    // The embedding's rows, as staged so far.
    [[nodiscard]] std::string staged() const {
        const WeightTensor& tensor = *layout_.find(kEmbedding);
        const auto* begin = reinterpret_cast<const char*>(target_.data() + tensor.offset);
        return {begin, begin + tensor.bytes()};
    }
    void expect_refused(const Result<>& result, std::string_view part) {
        ASSERT_FALSE(result.has_value());
        const messages::RankOutcome outcome = stage_->outcome(result);
        EXPECT_NE(shown(outcome.problems).find(part), std::string::npos) << shown(outcome.problems);
    }

    ModelConfig config_ = *ModelConfig::read(tied_dir());
    WeightLayout layout_;
    std::vector<std::byte> live_{};
    std::vector<std::byte> target_{};
    std::vector<std::pair<checkpoint::TensorSpec, std::string>> sent_{};
    messages::UpdateSpec spec_ = [] {
        messages::UpdateSpec spec;
        spec.partial = true;
        return spec;
    }();
    Pace pace_{1.0};
    std::atomic<bool> is_dropped_{false};
    CopyLedger live_ledger_{0, 0};
    CopyLedger target_ledger_{1, 0};
    std::unique_ptr<WeightStage> stage_{};
};

TEST_F(StageTest, TheSameHeadIsTakenBeforeAfterAndWithTheEmbedding) {
    const std::string other = changed(embedding(), 7);
    using Tensors = std::vector<std::pair<std::string, std::string>>;
    const Tensors head{{kHead, other}};
    const Tensors body{{kEmbedding, other}};
    for (const std::vector<Tensors>& order :
         {std::vector<Tensors>{head, body},
          std::vector<Tensors>{body, head},
          std::vector<Tensors>{{head[0], body[0]}},
          std::vector<Tensors>{{body[0], head[0]}},
          std::vector<Tensors>{head}}) {
        std::ranges::fill(target_, std::byte{0xaa});
        begin();
        for (const Tensors& tensors : order) ASSERT_TRUE(take(tensors).has_value());
        const Result<> finished = stage_->finish();
        ASSERT_TRUE(finished.has_value()) << finished.error().message;
        EXPECT_EQ(staged(), other);
        expect_vote_of(finished, target_);  // the embedding, once
    }
}

TEST_F(StageTest, P2_AStageThatHasRefusedATensorFails) {
    begin();
    auto [name, bytes] = sent_one(1);
    std::ranges::fill(bytes, '\xff');  // NaN
    ASSERT_FALSE(take({{name, bytes}}));
    EXPECT_FALSE(take({sent_one(2)}));
    const Result<> finished = stage_->finish();
    ASSERT_FALSE(finished);
    EXPECT_NE(finished.error().message.find("'" + name + "' is not finite"), std::string::npos)
        << finished.error().message;
}

TEST_F(StageTest, P10_TensorsThatArriveByTheirRowsAreDigestedAsWholeOnes) {
    for (const std::int64_t rows_max : {1, 3, 64}) {
        std::ranges::fill(target_, std::byte{0});
        begin();
        for (const auto& [spec, bytes] : sent_) {
            const Result<> taken = take_by_rows(spec.name, bytes, rows_max);
            ASSERT_TRUE(taken.has_value()) << taken.error().message;
        }
        const Result<> finished = stage_->finish();
        ASSERT_TRUE(finished.has_value()) << finished.error().message;
        EXPECT_TRUE(std::ranges::equal(target_, live_)) << rows_max;
        expect_vote_of(finished, live_);
        EXPECT_EQ(stage_->vote(finished).outcome.tensors, std::ssize(sent_));
    }
}

TEST_F(StageTest, AHeadAndAnEmbeddingThatArriveByTheirRowsAgree) {
    const std::string other = changed(embedding(), 7);
    for (const auto& [first, second] :
         {std::pair(kHead, kEmbedding), std::pair(kEmbedding, kHead)}) {
        begin();
        ASSERT_TRUE(take_by_rows(std::string(first), other, 5).has_value());
        ASSERT_TRUE(take_by_rows(std::string(second), other, 7).has_value());
        const Result<> finished = stage_->finish();
        ASSERT_TRUE(finished.has_value()) << finished.error().message;
        EXPECT_EQ(staged(), other);
        expect_vote_of(finished, target_);
        begin();
        ASSERT_TRUE(take_by_rows(std::string(first), other, 5).has_value());
        const Result<> taken = take_by_rows(std::string(second), embedding(), 7);
        expect_refused(taken ? stage_->finish() : taken, "'lm_head.weight' differs from");
        begin();
        ASSERT_TRUE(take_by_rows(std::string(first), other, 5).has_value());
        ASSERT_TRUE(take({{std::string(second), other}}).has_value());
        EXPECT_TRUE(stage_->finish().has_value());
    }
    begin();
    ASSERT_TRUE(take_by_rows(std::string(kHead), other, 5).has_value());
    ASSERT_TRUE(stage_->finish().has_value());
    EXPECT_EQ(staged(), other);
}

TEST_F(StageTest, P10_AHeadsLastRowsMayComeWithTheEmbeddingsFirst) {
    const std::string other = changed(embedding(), 7);
    const std::int64_t num_rows = shape_of(kEmbedding).front();
    const std::int64_t row_bytes = std::ssize(other) / num_rows;
    ASSERT_TRUE(place_rows(kHead, other, {0, num_rows - 1}).has_value());
    const auto* const bytes = reinterpret_cast<const std::byte*>(other.data());
    const auto rows_of = [&](const std::string& name, TensorRows rows) {
        return Incoming{
            .spec =
                {.name = name,
                 .dtype = checkpoint::StoredDtype::kBf16,
                 .shape = shape_of(kEmbedding)},
            .bytes = {.data = bytes + rows.begin * row_bytes},
            .rows = rows};
    };
    const std::vector<Incoming> both{
        rows_of(kHead, {num_rows - 1, 1}), rows_of(kEmbedding, {0, 2})};
    ASSERT_TRUE(stage_->stage_tensors(both, WeightStage::Expect::kMore).has_value());
    ASSERT_TRUE(place_rows(kEmbedding, other, {2, num_rows - 2}).has_value());
    const Result<> finished = stage_->finish();
    ASSERT_TRUE(finished.has_value()) << finished.error().message;
    EXPECT_EQ(staged(), other);
    expect_vote_of(finished, target_);
}

TEST_F(StageTest, P10_RowsThatAreMissingOrOutOfTurnAreRefused) {
    const std::string name(kEmbedding);
    const std::string& all = embedding();
    ASSERT_TRUE(place_rows(name, all, {0, 4}).has_value());
    expect_refused(stage_->finish(), "'model.embed_tokens.weight' has arrived up to row 4 of");
    const auto begin_again = [&] {
        begin();
        EXPECT_TRUE(place_rows(name, all, {0, 4}).has_value());
    };
    begin_again();
    expect_refused(place_rows(name, all, {5, 1}), "1 rows from row 5 on arrived out of order");
    begin_again();
    expect_refused(place_rows(name, all, {0, 4}), "has arrived up to row 4");
    begin_again();
    expect_refused(take({{name, all}}), "has arrived up to row 4");
    begin_again();
    expect_refused(place_rows(std::string(kHead), all, {0, 1}), "has arrived up to row 4");
    begin();
    expect_refused(place_rows(name, all, {4, 4}), "out of order");
    begin();
    ASSERT_TRUE(take_by_rows(name, all, 100).has_value());
    expect_refused(place_rows(name, all, {0, 4}), "arrived before in this update");
    begin();
    expect_refused(place_rows("no.such.tensor", all, {0, 4}), "'no.such.tensor'");
}

TEST_F(StageTest, AnotherHeadIsRefusedInWhateverOrderTheyCome) {
    const std::string other = changed(embedding(), embedding().size() / 2 - 1);
    ASSERT_TRUE(take({{kHead, other}}).has_value());
    ASSERT_TRUE(take({{kEmbedding, embedding()}}).has_value());
    expect_refused(stage_->finish(), "'lm_head.weight' differs from 'model.embed_tokens.weight'");
    begin();
    ASSERT_TRUE(take({{kEmbedding, embedding()}}).has_value());
    ASSERT_TRUE(take({{kHead, other}}).has_value());
    expect_refused(stage_->finish(), "tie_word_embeddings");
    begin();
    ASSERT_TRUE(take({{kEmbedding, other}, {kHead, embedding()}}).has_value());
    expect_refused(stage_->finish(), "tie_word_embeddings");
    begin();
    ASSERT_TRUE(take({{kHead, other}}).has_value());
    expect_refused(take({{kHead, embedding()}}), "arrived before");
}

// A client that lost an answer sends its call again.
TEST_F(StageTest, TheSameBytesAgainAreNoErrorAndChangeNothing) {
    for (const int num_times : {1, 2, 3}) {
        std::ranges::fill(target_, std::byte{0});
        begin();
        for (const auto& [spec, bytes] : sent_) {
            for (int time = 0; time < num_times; ++time) {
                const Result<> taken = take({{spec.name, bytes}});
                ASSERT_TRUE(taken.has_value()) << taken.error().message;
            }
        }
        ASSERT_TRUE(take({{kHead, embedding()}}).has_value());
        ASSERT_TRUE(take({{kHead, embedding()}, sent_one(0)}).has_value());
        const Result<> finished = stage_->finish();
        ASSERT_TRUE(finished.has_value()) << finished.error().message;
        EXPECT_TRUE(std::ranges::equal(target_, live_));
        const messages::WorkerStaged vote = stage_->vote(finished);
        const auto digests = digest_weights(layout_, live_.data(), *kernels::reference_ops(), {});
        ASSERT_EQ(vote.digests.size(), digests->size());
        for (std::size_t i = 0; i < digests->size(); ++i)
            EXPECT_EQ(vote.digests[i].lane0, (*digests)[i].lane0) << vote.digests[i].name;
    }
}

TEST_F(StageTest, OtherBytesForWhatArrivedBeforeAreRefused) {
    for (const auto& [spec, bytes] : sent_) {
        begin();
        ASSERT_TRUE(take({{spec.name, bytes}}).has_value());
        expect_refused(
            take({{spec.name, changed(bytes, bytes.size() / 2 - 1)}}),
            "'" + spec.name + "' arrived before in this update, with other bytes"
        );
    }
    begin();
    ASSERT_TRUE(stage_sparse(kEmbedding, {{3, bf16{0x3f80}}}).has_value());
    expect_refused(take({{kEmbedding, embedding()}}), "as a sparse tensor");
}

TEST_F(StageTest, UpdatesOfElementsAgreeToo) {
    const std::vector<Update> updates{{3, bf16{0x3f80}}, {8, bf16{0x4000}}};
    for (const auto& [first, second] :
         {std::pair(kEmbedding, kHead), std::pair(kHead, kEmbedding)}) {
        begin();
        ASSERT_TRUE(stage_sparse(first, {updates[0]}).has_value());
        ASSERT_TRUE(stage_sparse(second, {updates[0]}).has_value());
        ASSERT_TRUE(stage_sparse(first, {updates[1]}).has_value());
        ASSERT_TRUE(stage_sparse(second, {updates[1]}).has_value());
        const Result<> finished = stage_->finish();
        ASSERT_TRUE(finished.has_value()) << finished.error().message;
        const std::string now = staged();
        EXPECT_EQ(now.substr(6, 2), std::string("\x80\x3f", 2));
        EXPECT_EQ(now.substr(16, 2), std::string("\x00\x40", 2));

        begin();
        ASSERT_TRUE(stage_sparse(first, updates).has_value());
        expect_refused(stage_sparse(second, {{3, bf16{0x3f81}}}), "1 updates differ");
        begin();
        ASSERT_TRUE(stage_sparse(first, updates).has_value());
        ASSERT_TRUE(stage_sparse(second, {updates[0]}).has_value());
        expect_refused(stage_->finish(), "updates");
    }
    begin();
    ASSERT_TRUE(stage_sparse(kHead, updates).has_value());
    EXPECT_TRUE(stage_->finish().has_value());
    EXPECT_EQ(staged().substr(6, 2), std::string("\x80\x3f", 2));
}

class SecondRankTest : public StageTest {
  protected:
    SecondRankTest() : StageTest(1, 2) {}
};

TEST_F(SecondRankTest, TakesTheSameBytesAgainWhateverTheSplit) {
    std::ranges::fill(target_, std::byte{0});  // between tensors nothing is written
    for (const auto& [spec, bytes] : sent_) {
        ASSERT_TRUE(take({{spec.name, bytes}}).has_value());
        const Result<> again = take({{spec.name, bytes}});
        ASSERT_TRUE(again.has_value()) << again.error().message;
    }
    EXPECT_TRUE(stage_->finish().has_value());
    EXPECT_TRUE(std::ranges::equal(target_, live_));
}

TEST_F(SecondRankTest, HoldsItsRowsOfTheHeadAgainstItsRowsOfTheEmbedding) {
    ASSERT_TRUE(take({{kEmbedding, embedding()}, {kHead, changed(embedding(), 0)}}).has_value());
    EXPECT_TRUE(stage_->finish().has_value());  // that row is the first rank's
    begin();
    const std::string other = changed(embedding(), embedding().size() / 2 - 1);
    ASSERT_TRUE(take({{kEmbedding, embedding()}, {kHead, other}}).has_value());
    expect_refused(stage_->finish(), "tie_word_embeddings");
}

}  // namespace
}  // namespace pitstop::tp_worker
