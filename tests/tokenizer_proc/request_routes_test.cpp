// The routes that a request asks for, and those that it brings, at the doors.
#include "tests/tokenizer_proc/doors_fixture.h"

namespace pitstop::tokenizer {
namespace {

TEST_F(DoorsTest, RoutesThatCannotBeReportedAreRefused) {
    messages::Generate message = prompt("a");  // of 4 tokens
    message.routed_experts_start = 0;
    start();
    send("p", message);
    EXPECT_EQ(
        refusal("p").error.message,
        "return_routed_experts: the workers report no routes of this model (llama), which has no "
        "experts; leave it out"
    );
    routes_ = messages::RouteShape{.layers = 48, .per_token = 8, .num_experts = 128};
    context_len_ = 1 << 20;
    start();
    message.routed_experts_start = 5;
    send("p", message);
    EXPECT_EQ(
        refusal("p").error.message,
        "routed_experts_start is 5; accepted is 0 to the length of the prompt, 4"
    );
    message.routed_experts_start = 4;
    message.sampling.max_new_tokens = 90'000;  // 384 bytes each: over 32 MiB
    send("p", message);
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kTooLarge);
    message.sampling.max_new_tokens.reset();  // as many as fit the context
    send("p", message);
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kTooLarge);
    message.sampling.max_new_tokens = 87'000;
    send("p", message);
    EXPECT_EQ(next_request().routed_experts_start, 4);
}

TEST_F(DoorsTest, RoutesThatCannotBeFollowedAreRefused) {
    const messages::RouteShape shape{.layers = 2, .per_token = 2, .num_experts = 8};
    messages::Generate message = prompt("a");  // of 4 tokens
    message.routed_experts = messages::BroughtRoutes{.shape = shape};
    std::vector<std::uint8_t>& ids = message.routed_experts->experts.values;
    ids = {1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0};  // of 3 tokens
    start();
    const auto expect_refused = [&](std::string_view why) {
        send("p", message);
        EXPECT_EQ(refusal("p").error.message, why);
    };
    expect_refused("routed_experts: this model (llama) has no experts to choose from; leave it out"
    );
    routes_ = shape;
    routes_->num_experts = 7;
    dense_layers_ = {1};
    start();
    expect_refused(
        "routed_experts: its rows have 2 layers with 2 of 8 experts; the model has 2 with 2 of 7"
    );
    routes_ = shape;
    start();
    send("p", message);
    EXPECT_EQ(next_request().routed_experts.values, ids);
    ids.insert(ids.end(), {7, 0, 0, 0});  // the last token's, too
    message.rid = "b";
    send("p", message);
    EXPECT_EQ(next_request().routed_experts.values, ids);
    message.rid = "c";
    ids[13] = 7;
    expect_refused(
        "routed_experts: token 3, layer 0, entry 1 is expert 7, as an entry before it; a token has "
        "each expert once"
    );
    ids.insert(ids.begin(), 4, 0);
    expect_refused(
        "routed_experts: it has 5 rows; the prompt of 4 tokens takes 4, or 3 without its last "
        "token's"
    );
    ids.resize(8);
    expect_refused(
        "routed_experts: it has 2 rows; the prompt of 4 tokens takes 4, or 3 without its last "
        "token's"
    );
}

}  // namespace
}  // namespace pitstop::tokenizer
