// Tests one request's output in SGLang's shape, from chunks as the engine sends them.
#include "http_proc/sglang/output.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace pitstop::http {
namespace {

using nlohmann::json;

json written(SglangOutput& output) {
    JsonWriter writer;
    output.write(writer);
    return json::parse(writer.text());
}

messages::OutputChunk chunk(std::string text, std::vector<TokenId> tokens, std::string label) {
    messages::OutputChunk next;
    next.text = std::move(text);
    next.logprobs.assign(tokens.size(), -0.5F);
    next.spans = {
        {.epoch = Epoch{label.empty() ? 1 : 2},
         .label = std::move(label),
         .digest = "d",
         .tokens = static_cast<std::int64_t>(tokens.size()),
         .kv_min_epoch = Epoch{1},
         .kv_max_epoch = Epoch{2}}};
    next.tokens = std::move(tokens);
    return next;
}

TEST(SglangOutput, EventsAreCumulativeAndSpansComeLast) {
    SglangOutput output({.rid = "r", .logprobs = {.enabled = true}});
    output.append(chunk("a", {TokenId{1}}, ""));
    json event = written(output);
    EXPECT_EQ(event["text"], "a");
    EXPECT_EQ(event["meta_info"]["finish_reason"], nullptr);
    EXPECT_EQ(event["meta_info"]["weight_version"], "epoch 1");
    EXPECT_FALSE(event["meta_info"].contains("weight_versions"));
    messages::OutputChunk last = chunk("b", {TokenId{2}, TokenId{3}}, "new");
    last.finish =
        messages::Finish{.reason = messages::FinishReason::kStop, .matched_token = TokenId{3}};
    output.append(std::move(last));
    event = written(output);
    EXPECT_EQ(event["text"], "ab");
    EXPECT_EQ(event["output_ids"], json::parse("[1, 2, 3]"));
    const json& meta = event["meta_info"];
    EXPECT_EQ(meta["finish_reason"], json::parse(R"({"type": "stop", "matched": 3})"));
    EXPECT_EQ(meta["weight_version"], "new");
    EXPECT_EQ(meta["weight_versions"], json::parse(R"([{"version": "epoch 1", "start": 0, "end": 1},
                        {"version": "new", "start": 1, "end": 3}])"));
    EXPECT_EQ(meta["output_token_logprobs"].size(), 3U);
    EXPECT_EQ(meta["output_token_logprobs"][2], json::parse("[-0.5, 3, null]"));
}

// These counts are only for models with recurrent state; other models' answers lack the key.
TEST(SglangOutput, CachedTokensThatWereComputedAgainForTheirStateAreTold) {
    SglangOutput output({.rid = "r"});
    messages::OutputChunk first = chunk("a", {TokenId{1}}, "");
    first.counts = messages::RequestCounts{.prompt_tokens = 90, .cached_tokens = 16};
    output.append(std::move(first));
    json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["cached_tokens"], 16);
    EXPECT_FALSE(meta.contains("replayed_tokens"));
    messages::OutputChunk next = chunk("b", {TokenId{2}}, "");
    next.counts =
        messages::RequestCounts{.prompt_tokens = 90, .cached_tokens = 16, .replayed_tokens = 48};
    output.append(std::move(next));
    meta = written(output)["meta_info"];
    EXPECT_EQ(meta["replayed_tokens"], 48);
}

// Only trees with --speculate have drafts.
TEST(SglangOutput, DraftsAreCountedByTheEnginesNames) {
    SglangOutput output({.rid = "r"});
    messages::OutputChunk first = chunk("a", {TokenId{1}, TokenId{2}}, "");
    first.counts = messages::RequestCounts{.prompt_tokens = 9};
    output.append(std::move(first));
    EXPECT_FALSE(written(output)["meta_info"].contains("spec_verify_ct"));
    messages::OutputChunk next = chunk("b", {TokenId{3}, TokenId{4}, TokenId{5}, TokenId{6}}, "");
    next.counts = messages::RequestCounts{
        .prompt_tokens = 9,
        .drafts = messages::DraftCounts{.passes = 3, .rows = 2, .drafted = 6, .accepted = 3}};
    output.append(std::move(next));
    const json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["spec_verify_ct"], 3);
    EXPECT_EQ(meta["spec_accept_length"], 2.0);
    EXPECT_EQ(meta["spec_accept_rate"], 0.5);
    EXPECT_EQ(meta["spec_num_proposed_drafts"], 6);
    EXPECT_EQ(meta["spec_num_correct_drafts"], 3);
}

// P3: two versions without a label are not the same weights.
TEST(SglangOutput, P3_VersionsWithoutALabelAreNamedByTheirEpochs) {
    SglangOutput output({.rid = "r"});
    output.append(chunk("a", {TokenId{1}}, ""));
    messages::OutputChunk last = chunk("b", {TokenId{2}, TokenId{3}}, "");
    last.spans.front().epoch = Epoch{2};
    last.finish = messages::Finish{.reason = messages::FinishReason::kLength};
    output.append(std::move(last));
    const json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["weight_version"], "epoch 2");
    EXPECT_EQ(meta["weight_versions"], json::parse(R"([{"version": "epoch 1", "start": 0, "end": 1},
                        {"version": "epoch 2", "start": 1, "end": 3}])"));
}

// P3: the trainer's label is returned unchanged. Tokens of another epoch are another run.
TEST(SglangOutput, P3_ALabelThatLooksLikeAnEpochsNameIsARunOfItsOwn) {
    SglangOutput output({.rid = "r"});
    output.append(chunk("a", {TokenId{1}}, ""));
    messages::OutputChunk last = chunk("b", {TokenId{2}, TokenId{3}}, "epoch 1");
    last.spans.front().epoch = Epoch{2};
    last.finish = messages::Finish{.reason = messages::FinishReason::kLength};
    output.append(std::move(last));
    const json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["weight_versions"], json::parse(R"([{"version": "epoch 1", "start": 0, "end": 1},
                        {"version": "epoch 1", "start": 1, "end": 3}])"));
    EXPECT_EQ(meta["weight_version_spans"][0]["epoch"], 1);
    EXPECT_EQ(meta["weight_version_spans"][1]["epoch"], 2);
}

// Routes of 2 layers with one expert each. An output token's row belongs to the token before it.
messages::Routes routes(std::int64_t start, std::vector<int> ids, std::int64_t num_experts) {
    messages::Routes part{
        .start = start, .shape = {.layers = 2, .per_token = 1, .num_experts = num_experts}};
    std::vector<std::uint8_t> bytes;
    for (const int id : ids) {
        bytes.push_back(static_cast<std::uint8_t>(id & 0xff));
        if (num_experts > 256) bytes.push_back(static_cast<std::uint8_t>(id >> 8));
    }
    part.append(bytes, Epoch{start});
    return part;
}

TEST(SglangOutput, RoutesAreBase64OfInt32InTheLastEvent) {
    for (const std::int64_t num_experts : {256, 512}) {
        SglangOutput output({.rid = "r", .routes = {.start = 2}});
        messages::OutputChunk first = chunk("a", {TokenId{1}}, "");
        first.routes = routes(2, {1, 2, 255, 4}, num_experts);
        first.counts = messages::RequestCounts{.prompt_tokens = 4};
        output.append(std::move(first));
        EXPECT_FALSE(written(output)["meta_info"].contains("routed_experts"));
        messages::OutputChunk last = chunk("b", {TokenId{2}}, "");
        last.routes = routes(4, {5, num_experts == 512 ? 511 : 6}, num_experts);
        last.finish = messages::Finish{.reason = messages::FinishReason::kLength};
        output.append(std::move(last));
        const json meta = written(output)["meta_info"];
        // base64(struct.pack("<6i", 1, 2, 255, 4, 5, 6 or 511)), by Python.
        EXPECT_EQ(
            meta["routed_experts"],
            num_experts == 512 ? "AQAAAAIAAAD/AAAABAAAAAUAAAD/AQAA"
                               : "AQAAAAIAAAD/AAAABAAAAAUAAAAGAAAA"
        );
        EXPECT_EQ(meta["routed_experts_start_len"], 2);
        EXPECT_EQ(
            meta["routed_experts_spans"],
            json::parse(
                R"([{"epoch": 2, "start": 2, "end": 4}, {"epoch": 4, "start": 4, "end": 5}])"
            )
        );
    }
}

// After an abort before the prompt was computed, rows are missing: null is shown, not some rows.
TEST(SglangOutput, RoutesThatAreNotCompleteAreNull) {
    for (const std::int64_t start : {0, 4}) {
        SglangOutput output({.rid = "r", .routes = {.start = start}});
        messages::OutputChunk last;
        last.counts = messages::RequestCounts{.prompt_tokens = 4};
        last.finish = messages::Finish{.reason = messages::FinishReason::kAbort};
        output.append(std::move(last));
        const json meta = written(output)["meta_info"];
        EXPECT_EQ(meta["routed_experts"], start == 0 ? json() : json(""));
    }
}

TEST(SglangOutput, DeltasHaveWhatIsNewAndCountsOfAll) {
    SglangOutput output({.rid = "r", .logprobs = {.enabled = true}, .is_incremental = true});
    output.append(chunk("a", {TokenId{1}}, ""));
    written(output);
    output.append(chunk("b", {TokenId{2}}, ""));
    const json event = written(output);
    EXPECT_EQ(event["text"], "b");
    EXPECT_EQ(event["output_ids"], json::parse("[2]"));
    EXPECT_EQ(event["meta_info"]["output_token_logprobs"].size(), 1U);
    EXPECT_EQ(event["meta_info"]["completion_tokens"], 2);
}

TEST(SglangOutput, SpansOfOneLabelAreOneForSglang) {
    SglangOutput output({.rid = "r"});
    messages::OutputChunk whole = chunk("ab", {TokenId{1}, TokenId{2}}, "same");
    whole.spans[0].tokens = 1;
    whole.spans.push_back(whole.spans[0]);
    whole.spans[1].kv_min_epoch = Epoch{2};  // after a recompute: other KV, the same weights
    whole.finish = messages::Finish{.reason = messages::FinishReason::kLength};
    output.append(std::move(whole));
    const json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["weight_versions"].size(), 1U);
    EXPECT_EQ(meta["weight_version_spans"].size(), 2U);
}

TEST(SglangOutput, AnAbortWhileWaitingHasSglangsWordsAndNoMore) {
    for (const bool was_waiting : {false, true}) {
        SglangOutput output({.rid = "r"});
        messages::OutputChunk end = chunk("a", {TokenId{1}}, "");
        end.finish = messages::Finish{
            .reason = messages::FinishReason::kAbort,
            .verdict = messages::Verdict::done("enough"),
            .was_waiting = was_waiting};
        output.append(std::move(end));
        EXPECT_EQ(
            written(output)["meta_info"]["finish_reason"],
            json::parse(
                was_waiting ? R"({"type": "abort", "message": "Abort in waiting queue"})"
                            : R"({"type": "abort", "message": "enough",
                                  "status_code": null, "err_type": null})"
            )
        );
    }
}

TEST(SglangOutput, AnAbortBeforeTheFirstTokenHasOneEmptySpan) {
    SglangOutput output({.rid = "r"});
    messages::OutputChunk end;
    end.finish = messages::Finish{
        .reason = messages::FinishReason::kAbort, .verdict = messages::Verdict::done("Aborted")};
    output.append(std::move(end));
    EXPECT_TRUE(output.lacks_version());
    output.set_version({.epoch = Epoch{3}, .label = "now"});
    const json meta = written(output)["meta_info"];
    EXPECT_EQ(meta["finish_reason"]["type"], "abort");
    EXPECT_EQ(
        meta["weight_versions"], json::parse(R"([{"version": "now", "start": 0, "end": 0}])")
    );
}

}  // namespace
}  // namespace pitstop::http
