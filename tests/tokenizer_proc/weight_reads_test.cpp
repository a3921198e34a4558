// Calls that read one tensor of the weights, or all digests.
#include "tests/tokenizer_proc/admin_fixture.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

messages::WorkerTensor piece_of(
    CallId call, std::int64_t row, std::int64_t col, std::uint8_t fill
) {
    messages::WorkerTensor piece;
    piece.call = call;
    piece.epoch = Epoch{1};
    piece.tensor = {.name = "w", .dtype = "BF16", .shape = {2, 4}};
    piece.row_begin = row;
    piece.num_rows = 1;
    piece.col_begin = col;
    piece.num_cols = 2;
    piece.data.values.assign(4, fill);
    return piece;
}

TEST_F(AdminTest, ATensorIsPutTogetherFromItsRectangles) {
    start(2);
    messages::GetWeights get;
    get.name = "w";
    call(get);
    const auto read = order<messages::WorkerReadTensor>(0);
    EXPECT_EQ(read.name, "w");
    from_tree(piece_of(read.call, 1, 2, 4));
    from_tree(piece_of(read.call, 0, 0, 1));
    from_tree(piece_of(read.call, 0, 0, 1));  // another rank's copy
    from_tree(piece_of(read.call, 0, 2, 2));
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    from_tree(piece_of(read.call, 1, 0, 3));
    const messages::WeightsReply got = reply<messages::WeightsReply>();
    EXPECT_EQ(
        got.data.values, (std::vector<std::uint8_t>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4})
    );
    EXPECT_EQ(got.tensor.shape, (std::vector<std::int64_t>{2, 4}));
}

TEST_F(AdminTest, P5_ALateReadOfATensorNamesTheRanksThatSentNothing) {
    make(1);
    ranks_ = 3;
    say_hello(0);
    call(messages::GetWeights{.timeout_ms = 1000, .name = "w"});
    messages::WorkerTensor piece = piece_of(order<messages::WorkerReadTensor>(0).call, 0, 0, 1);
    piece.rank = Rank{1};
    from_tree(piece);
    wait(1000ms + kReplicaGrace);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(error.error.message.find("phase weights"), std::string::npos) << error.error.message;
    EXPECT_NE(error.error.message.find("from replica 0 (rank 0, 2)"), std::string::npos)
        << error.error.message;
}

TEST_F(AdminTest, ARectangleOutsideTheTensorIsAnErrorNotAWrite) {
    start();
    call(messages::GetWeights{.name = "w"});
    messages::WorkerTensor piece = piece_of(order<messages::WorkerReadTensor>(0).call, 0, 0, 1);
    piece.row_begin = 5;
    from_tree(piece);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kInternal);
}

TEST_F(AdminTest, ATensorThatDoesNotExistIsNotFound) {
    start();
    call(messages::GetWeights{.name = "w"});
    messages::WorkerTensor piece;
    piece.call = order<messages::WorkerReadTensor>(0).call;
    piece.verdict.code = ErrorCode::kNotFound;
    piece.verdict.message = "similar names: v";
    from_tree(piece);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kNotFound);
    EXPECT_EQ(error.error.message, "similar names: v");
}

TEST_F(AdminTest, DigestsAreComparedOverReplicas) {
    start(2);
    for (const bool is_same : {true, false}) {
        call(messages::WeightDigests{});
        for (const int replica : {0, 1}) {
            messages::WorkerDigests part;
            part.call = order<messages::WorkerDigest>(replica).call;
            part.replica = ReplicaId{replica};
            part.epoch = Epoch{1};
            part.digests = {
                {.name = "w",
                 .shape = {2, 4},
                 .lane0 = 1,
                 .lane1 = is_same ? 2u : 2u + static_cast<std::uint64_t>(replica)}};
            from_tree(part);
        }
        const messages::DigestsReply digests = reply<messages::DigestsReply>();
        EXPECT_EQ(digests.ok, is_same) << digests.verdict.message;
        if (is_same) {
            EXPECT_EQ(digests.tensors.size(), 1u);
            EXPECT_EQ(digests.digest.size(), 32u);
        } else {
            EXPECT_EQ(digests.verdict.code, ErrorCode::kDataLoss);
        }
    }
}

}  // namespace
}  // namespace pitstop::tokenizer
