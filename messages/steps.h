// Steps: the scheduler's plans and the workers' results.
//
// Order: a worker's socket is first in, first out, and every rank gets the same bytes in the same
// order. So an order between two plans (a commit) takes effect at the same step boundary on all
// ranks (P1). Loss: a worker that stops answering ends the tree. Nothing is sent twice.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/drafts.h"
#include "messages/fields.h"
#include "messages/frames.h"
#include "messages/generation.h"
#include "messages/grammars.h"
#include "messages/not_finite.h"
#include "messages/routes.h"
#include "messages/supports.h"
#include "messages/version_digest.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// A place for a checkpoint, a copy of one request's recurrent state; same number on every rank.
enum class CheckpointId : std::int32_t {};

struct WorkerHello {
    static constexpr std::string_view kType = "worker_hello";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: loaded and ready; sent once, first.";
    int protocol = kProtocolVersion;
    Rank rank{};
    int tp = 1;
    std::int64_t pid = 0;
    std::string model_type{};
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t num_pages = 0;
    std::int64_t page_size = 0;
    std::int64_t num_slots = 0;
    std::vector<TokenId> eos_ids{};
    std::vector<PartDigest> digests{};
    std::int64_t weight_bytes = 0;
    std::int64_t kv_bytes = 0;
    std::int64_t graph_bytes_max = 0;
    std::string device{};
    std::string device_uuid{};
    std::string device_why{};
    std::vector<std::string> libraries{};
    std::string compute{};
    bool has_weights = true;
    std::string update_mode{};
    std::string update_mode_why{};
    std::optional<RouteShape> routes{};
    std::int64_t adapter_rank_max = 0;
    std::vector<std::int64_t> dense_layers{};
    std::int64_t state_bytes = 0;
    std::int64_t num_checkpoints = 0;
    std::int64_t drafted_max = 0;
    int ep = 1;
    std::string no_grammars{};
    std::string no_supports{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version");
        f("rank", rank, "tensor-parallel rank");
        f("tp", tp, "number of ranks");
        f("pid", pid, "process id");
        f("model_type", model_type, "the checkpoint's family");
        f("context_len", context_len, "positions the model has");
        f("vocab_size", vocab_size, "entries of the vocabulary");
        f("num_pages", num_pages, "KV pages of this rank");
        f("page_size", page_size, "tokens per page");
        f("num_slots", num_slots, "requests that may run at once");
        f("eos_ids", eos_ids, "end-of-sequence tokens");
        f("digests", digests, "of the loaded weights: this rank's parts, in name order");
        f("weight_bytes", weight_bytes, "bytes of weights on this rank");
        f("kv_bytes", kv_bytes, "bytes of KV on this rank");
        f("graph_bytes_max",
          graph_bytes_max,
          "bytes of its GPU reserved for graphs of steps; 0: it makes none");
        f("device", device, "cpu, with its instruction set, or the GPU's name");
        f("device_uuid", device_uuid, "its name in an ipc source's handles");
        f("device_why",
          device_why,
          "the reason of --device auto for this device; empty: it was chosen by name");
        f("libraries",
          libraries,
          "on a GPU: NVIDIA's libraries that were found, with version and file");
        f("compute", compute, "bf16 or fp32");
        f("has_weights", has_weights, "false: it waits for a first complete update");
        f("update_mode", update_mode, "how updates are staged: staged, host, lend or direct");
        f("update_mode_why", update_mode_why, "why, with the bytes that decided it");
        f("routes", routes, "the shape of a row of routes; absent: the worker reports none");
        f("adapter_rank_max",
          adapter_rank_max,
          "the highest rank of an adapter; 0: the worker computes none");
        f("dense_layers", dense_layers, "with routes: the layers without experts, ascending");
        f("state_bytes",
          state_bytes,
          "bytes of one request's recurrent state on this rank, besides its KV; 0: the model has "
          "none");
        f("num_checkpoints",
          num_checkpoints,
          "places for copies of such a state; 0: none can be saved");
        f("drafted_max", drafted_max, "the most drafts of a row; 0: the worker verifies none");
        f("ep", ep, "groups of ranks over which experts are divided");
        f("no_grammars", no_grammars, "why this rank compiles no grammars; empty: it compiles them"
        );
        f("no_supports",
          no_supports,
          "why this rank reports no supports of draws; empty: it reports them");
    }
};

// The data of a running request that a worker keeps in a slot, from the plan that starts or resumes
// the request until the slot is set up again.
struct RequestSetup {
    SlotId slot{};
    RequestKey key{};
    std::int64_t prompt_len = 0;
    SamplingParams sampling{};
    LogprobOptions logprobs{};
    std::vector<TokenId> stop_ids{};
    std::vector<TokenId> history{};
    std::optional<GrammarId> grammar{};

    template <class F>
    void fields(F&& f) {
        f("slot", slot, "its place, below num_slots");
        f("key", key, "the request, for logs");
        f("prompt_len", prompt_len, "tokens before the first output token");
        f("sampling", sampling, "without texts and without its grammar");
        f("logprobs", logprobs, "which logprobs are computed");
        f("stop_ids", stop_ids, "end-of-sequence and stop tokens: never drawn before min_new_tokens"
        );
        f("history",
          history,
          "prompt and output so far, if a penalty, bad tokens or a grammar need them");
        f("grammar", grammar, "the grammar of its output, compiled before; absent: none");
    }
    friend bool operator==(const RequestSetup&, const RequestSetup&) = default;
};

// One request's part of a step: tokens [begin, begin + num_new) of its context.
//
// With drafts, the last num_drafted tokens are guesses. The row samples after each of its last
// num_drafted + 1 tokens, each time as if all drafts before were right. Output i of the row counts
// if every draft before it equals the output sampled in its place. All other outputs are void, and
// so are the KV and all other worker state of their tokens.
//
// With recurrent state, a row continues from the state after tokens [0, begin). This state is zeros
// if begin is 0, a checkpoint that a row saved after that many tokens, or the state that the slot's
// previous row left, without wrong drafts. A plan may restore what an earlier plan saved, and
// overwrite what an earlier plan restored. One plan saves a checkpoint at most once, and no row of
// that plan restores it. A state after a draft is saved only if this draft and all before it are
// right. All rows of a plan together have at most kStateDraftsMax drafts.
struct PlanRow {
    SlotId slot{};
    std::int64_t begin = 0;
    std::int64_t num_new = 0;
    std::int64_t num_pages = 0;
    std::optional<std::int64_t> output_index{};
    std::int64_t num_scored = 0;
    std::int64_t num_routed = 0;
    std::int64_t num_brought = 0;
    bool takes_sampled = false;
    std::optional<AdapterId> adapter{};
    std::optional<CheckpointId> state_from{};
    std::optional<CheckpointId> save_to{};
    std::int64_t save_at = 0;
    std::optional<std::int64_t> num_drafted{};

    template <class F>
    void fields(F&& f) {
        f("slot", slot, "the request");
        f("begin", begin, "position of its first new token");
        f("num_new", num_new, "new tokens, at least 1");
        f("num_pages", num_pages, "its pages in `pages`: they hold positions [0, begin + num_new)");
        f("output_index",
          output_index,
          "sample after its last token: the index of that output token; absent: do not sample");
        f("num_scored",
          num_scored,
          "prompt logprobs: this many of its last positions are scored against `targets`");
        f("num_routed", num_routed, "number of its last positions whose routes are reported");
        f("num_brought", num_brought, "number of its first positions whose routes are in `routes`");
        f("takes_sampled",
          takes_sampled,
          "its one new token is the one this slot sampled last; the entry in `tokens` is 0");
        f("adapter", adapter, "the version of its adapter; absent: it has none");
        f("state_from",
          state_from,
          "the checkpoint of the state after tokens [0, begin), below num_checkpoints; absent: "
          "zeros "
          "if begin is 0, otherwise the slot's own state");
        f("save_to",
          save_to,
          "the checkpoint that gets the state after tokens [0, save_at), below num_checkpoints; "
          "absent: none");
        f("save_at", save_at, "with save_to: a position in (begin, begin + num_new]; otherwise 0");
        f("num_drafted",
          num_drafted,
          "number of the row's last tokens that are drafts, at least 1; absent: none. The row "
          "samples after the token before the drafts and after each draft, from output_index on");
    }
    friend bool operator==(const PlanRow&, const PlanRow&) = default;

    // Returns how many outputs the row samples.
    [[nodiscard]] std::int64_t num_sampled() const {
        return output_index ? 1 + num_drafted.value_or(0) : 0;
    }
};

struct StepPlan {
    static constexpr std::string_view kType = "step_plan";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> every tp_worker of the replica: one forward pass. Never sent twice. All "
        "ranks get the same bytes; a rank differs in its shard of the weights, never in its batch.";
    static constexpr std::size_t kRowsMax = 4096;       // bounds every buffer sized from a plan
    static constexpr std::size_t kTokensMax = 1 << 17;  // bounds every buffer sized from a plan
    StepId step{};
    Epoch epoch{};
    std::vector<RequestSetup> setups{};
    std::vector<PlanRow> rows{};
    RawArray<TokenId> tokens{};
    RawArray<PageId> pages{};
    RawArray<TokenId> targets{};
    RawArray<std::uint8_t> routes{};

    template <class F>
    void fields(F&& f) {
        f("step", step, "counted from 1");
        f("epoch", epoch, "the version of the weights for this pass (P1)");
        f("setups", setups, "slots (re)started by this plan");
        f("rows", rows, "ordered by request key, so that every rank sees one order");
        f("tokens", tokens, "[sum of num_new], rows back to back");
        f("pages", pages, "[sum of num_pages], rows back to back");
        f("targets",
          targets,
          "[sum of num_scored], rows back to back: the token after each scored position");
        f("routes",
          routes,
          "[sum of num_brought, layers, per_token], rows back to back (RouteShape): the experts "
          "that these positions use");
    }
};

// The prompt scores of a step, in the order of the plan's targets.
struct StepScores {
    RawArray<float> logprobs{};
    RawArray<std::int32_t> ranks{};
    RawArray<TokenId> top_ids{};
    RawArray<float> top_logprobs{};
    RawArray<float> ids_logprobs{};

    template <class F>
    void fields(F&& f) {
        f("logprobs", logprobs, "[targets]");
        f("ranks", ranks, "[targets], from 1");
        f("top_ids", top_ids, "[sum over targets of its request's top]");
        f("top_logprobs", top_logprobs, "[the same]");
        f("ids_logprobs", ids_logprobs, "[sum over targets of its request's ids]");
    }
    friend bool operator==(const StepScores&, const StepScores&) = default;
};

struct StepResult {
    static constexpr std::string_view kType = "step_result";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: a plan was run. Rank 0 sends the numbers, the others only "
        "report the end.";
    StepId step{};
    Epoch epoch{};
    Rank rank{};
    RawArray<TokenId> sampled{};
    std::vector<std::int64_t> undrawn{};
    RawArray<float> logprobs{};
    RawArray<std::int32_t> ranks{};
    RawArray<TokenId> top_ids{};
    RawArray<float> top_logprobs{};
    RawArray<float> ids_logprobs{};
    StepScores scores{};
    RawArray<std::uint8_t> routes{};
    RawArray<std::int64_t> expert_load{};
    std::vector<NotFiniteRow> not_finite{};
    std::vector<DrawSupport> supports{};
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        f("step", step, "the plan's step");
        f("epoch", epoch, "the version of the weights that it ran under");
        f("rank", rank, "the sender");
        f("sampled",
          sampled,
          "[outputs that rows sample], in the plan's order; 0 in the place of an undrawn one");
        f("undrawn",
          undrawn,
          "places in `sampled` of outputs without a token, ascending: not_finite names the "
          "output's row, or the request's own bans left no token");
        f("logprobs", logprobs, "[shape of sampled], the tokens' logprobs, whether requested or not"
        );
        f("ranks",
          ranks,
          "[shape of sampled], the tokens' ranks, from 1; 0 if no logprobs are requested");
        f("top_ids", top_ids, "[sum over these outputs of their request's top]");
        f("top_logprobs", top_logprobs, "[the same]");
        f("ids_logprobs", ids_logprobs, "[sum over these outputs of their request's ids]");
        f("scores", scores, "prompt scores");
        f("routes", routes, "[sum of num_routed, layers, per_token], rows back to back (RouteShape)"
        );
        f("expert_load",
          expert_load,
          "[layers, num_experts], tokens routed to each expert since the start, including this "
          "step; in one step per second, otherwise empty");
        f("not_finite",
          not_finite,
          "the plan's rows with a token that is not finite, ascending; a draft after a wrong one "
          "does "
          "not count");
        f("supports",
          supports,
          "[outputs that rows sample of requests that want supports], in the plan's order");
        f("elapsed_us",
          elapsed_us,
          "microseconds to this result from taking the plan, or from the end of the previous step "
          "if that was later: until then, the previous step has the device");
    }
};

struct WorkerError {
    static constexpr std::string_view kType = "worker_error";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: this worker cannot continue; it exits after sending this.";
    Rank rank{};
    Error error{};

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "the sender");
        f("code", error.code, "an error code");
        f("message", error.message, "what happened");
    }
};

std::optional<std::string> invalid(const StepPlan& plan);
std::optional<std::string> invalid(const WorkerHello& message);

}  // namespace pitstop::messages
