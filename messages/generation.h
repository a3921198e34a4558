// The messages of generation, from a client's prompt to its text.
//
// Order: a request's chunks arrive in order, and the chunk with `finish` is the last. Loss: when a
// peer is gone, its door ends the peer's requests. Nothing is sent twice.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/conversations.h"
#include "messages/drafts.h"
#include "messages/fields.h"
#include "messages/routes.h"
#include "messages/sampling.h"
#include "messages/supports.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kRidBytesMax = 256;
// A request's client has names, outermost first. The first name divides the share of the
// connection, and each later name the share of the previous one (base/fair_queue.h).
inline constexpr std::size_t kClientLevelsMax = 3;
inline constexpr std::size_t kClientNameBytesMax = 128;
inline constexpr std::int64_t kPromptTokensMax = std::int64_t{1} << 22;

// The cached prefixes that a request accepts (P9).
enum class KvTolerance : std::uint8_t { kNever, kMaxLag, kKeep };
template <>
struct EnumNames<KvTolerance> {
    static constexpr std::array<std::string_view, 3> kNames{"never", "max_lag", "keep"};
};

struct Generate {
    static constexpr std::string_view kType = "generate";
    static constexpr std::string_view kAbout =
        "client -> data door: one request. Answered by `outputs`, or by `error` with its rid.";
    std::string rid{};
    std::optional<std::string> text{};
    std::optional<std::vector<TokenId>> input_ids{};
    SamplingParams sampling{};
    LogprobOptions logprobs{};
    std::optional<std::int64_t> routed_experts_start{};
    std::optional<BroughtRoutes> routed_experts{};
    bool stream = true;
    bool text_output = true;
    std::int64_t priority = 0;
    KvTolerance kv_tolerance = KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;
    std::optional<std::int64_t> replica{};
    std::vector<std::string> client{};
    std::string adapter{};
    std::optional<std::vector<TokenId>> draft_ids{};
    std::optional<std::string> draft_key{};
    std::optional<Turn> turn{};

    template <class F>
    void fields(F&& f) {
        f("rid",
          rid,
          "the caller's id, unique among the caller's open requests; empty: the tree makes an id, "
          "which the outputs have");
        f("text",
          text,
          "the prompt as UTF-8 text. Special tokens in the text are recognised; the special tokens "
          "that the model puts around a text are added");
        f("input_ids", input_ids, "the prompt as tokens; exactly one of text and input_ids");
        f("sampling", sampling, "how tokens are drawn");
        f("logprobs", logprobs, "which logprobs are reported");
        f("routed_experts_start",
          routed_experts_start,
          "report the experts of each token from this index on, at most the prompt's length; "
          "absent: report none");
        f("routed_experts",
          routed_experts,
          "the experts that the prompt's tokens use, for all of them or for all but the last; "
          "absent: each layer's router chooses");
        f("stream", stream, "a chunk per step; false: one chunk at the end");
        f("text_output", text_output, "detokenize; false: tokens only (stop strings need true)");
        f("priority",
          priority,
          "requests with a larger number are admitted first; --scheduling orders equal ones");
        f("kv_tolerance",
          kv_tolerance,
          "whether cached prefixes that older weights computed may be used: never, max_lag or keep"
        );
        f("kv_max_lag",
          kv_max_lag,
          "with max_lag: use cached prefixes that are at most this many epochs old");
        f("replica", replica, "run on this data-parallel replica; absent: the least loaded");
        f("client",
          client,
          "the request's client, outermost name first: with fair scheduling the clients of this "
          "connection take turns; empty: the connection itself");
        f("adapter", adapter, "the adapter to generate with; empty: the model alone");
        f("draft_ids",
          draft_ids,
          "a guess at the output, or texts that the output may quote. Speculation, if on, verifies "
          "these tokens; they do not change the output");
        f("draft_key",
          draft_key,
          "requests with equal keys draft from each other's outputs; absent: requests of the same "
          "connection with the same prompt");
        f("turn", turn, "how the prompt continues from a conversation; absent: the prompt is whole"
        );
    }
};

struct Cancel {
    static constexpr std::string_view kType = "cancel";
    static constexpr std::string_view kAbout =
        "client -> data door: end these requests of this client (each ends with `finish.reason` "
        "abort), and these calls. Ids that are not open are ignored.";
    std::vector<std::string> rids{};
    std::vector<CallId> calls{};

    template <class F>
    void fields(F&& f) {
        f("rids", rids, "exact ids");
        f("calls", calls, "tokenize and render_chat calls: each is answered by `error`, aborted");
    }
};

// A run of output tokens that were sampled under one weight version (P3).
struct Span {
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t tokens = 0;
    Epoch kv_min_epoch{};
    Epoch kv_max_epoch{};
    std::optional<AdapterVersion> adapter{};
    std::optional<Epoch> kv_min_adapter{};

    template <class F>
    void fields(F&& f) {
        f("epoch", epoch, "the weight version that sampled the tokens");
        f("label", label, "that version's label");
        f("digest", digest, "that version's digest, 32 hex digits");
        f("tokens", tokens, "the number of tokens");
        f("kv_min_epoch", kv_min_epoch, "the oldest epoch of the KV that these tokens attended to");
        f("kv_max_epoch", kv_max_epoch, "the newest epoch of the KV that these tokens attended to");
        f("adapter", adapter, "the adapter's version that sampled the tokens; absent: no adapter");
        f("kv_min_adapter",
          kv_min_adapter,
          "the oldest version of the adapter among the KV that these tokens attended to; the "
          "newest is the version in `adapter`");
    }
    friend bool operator==(const Span&, const Span&) = default;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kAbort, kError };
template <>
struct EnumNames<FinishReason> {
    static constexpr std::array<std::string_view, 4> kNames{"stop", "length", "abort", "error"};
};

struct Finish {
    FinishReason reason = FinishReason::kStop;
    std::optional<TokenId> matched_token{};
    std::string matched_text{};
    Verdict verdict{};
    bool was_waiting = false;

    template <class F>
    void fields(F&& f) {
        f("reason", reason, "stop (end of sequence, stop token, stop text), length, abort or error"
        );
        f("matched_token", matched_token, "stop: the token that ended the output");
        f("matched_text", matched_text, "stop: the stop text that ended it");
        verdict.fields_in(f, "error: the error's code", "abort, error: why");
        f("was_waiting",
          was_waiting,
          "abort: the request was not running, because it had not begun or was retracted");
    }
    friend bool operator==(const Finish&, const Finish&) = default;
};

// The logprobs of prompt tokens [start, length of the prompt).
struct PromptLogprobs {
    std::int64_t start = 0;
    std::vector<float> logprobs{};
    std::vector<std::int32_t> ranks{};
    std::vector<TokenId> top_ids{};
    std::vector<float> top_logprobs{};
    std::vector<float> ids_logprobs{};

    template <class F>
    void fields(F&& f) {
        f("start", start, "the prompt index of the first entry, at least 1: token 0 has no logprob"
        );
        f("logprobs", logprobs, "[n], the logprob of each prompt token from `start` on");
        f("ranks",
          ranks,
          "[n], each prompt token's rank among all tokens, from 1: the most probable; equally "
          "probable tokens are ordered by id");
        f("top_ids", top_ids, "[n * top], most probable first");
        f("top_logprobs", top_logprobs, "[n * top]");
        f("ids_logprobs", ids_logprobs, "[n * ids], in the request's order");
    }
    friend bool operator==(const PromptLogprobs&, const PromptLogprobs&) = default;
};

struct RequestCounts {
    std::int64_t prompt_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t completion_tokens = 0;
    std::int64_t retractions = 0;
    std::int64_t replica = 0;
    std::int64_t queue_us = 0;
    std::int64_t prefill_us = 0;
    std::int64_t decode_us = 0;
    std::int64_t replayed_tokens = 0;
    std::optional<DraftCounts> drafts{};
    std::int64_t history_tokens = 0;
    std::int64_t stale_tokens = 0;

    template <class F>
    void fields(F&& f) {
        f("prompt_tokens", prompt_tokens, "length of the prompt");
        f("cached_tokens",
          cached_tokens,
          "prompt tokens found in the prefix cache when it was first admitted");
        f("completion_tokens", completion_tokens, "output tokens so far");
        f("retractions", retractions, "the number of its retractions");
        f("replica", replica, "the replica that ran it");
        f("queue_us",
          queue_us,
          "microseconds from its arrival at the replica to its first admission");
        f("prefill_us",
          prefill_us,
          "microseconds from its first admission to its first output token");
        f("decode_us", decode_us, "microseconds from its first output token to its latest");
        f("replayed_tokens",
          replayed_tokens,
          "prompt tokens after the cached ones, computed again although the prefix cache had them: "
          "no checkpoint of the recurrent state after them existed");
        f("drafts", drafts, "with speculation: its drafts");
        f("history_tokens",
          history_tokens,
          "for a turn: prompt tokens that the previous turn had in its prompt or output");
        f("stale_tokens",
          stale_tokens,
          "for a turn: prompt tokens after the cached ones. The prefix cache had them, but from "
          "weights that kv_tolerance excludes");
    }
    friend bool operator==(const RequestCounts&, const RequestCounts&) = default;
};

// The output that one step added to one request. The scheduler, the detokenizer and the client use
// this struct: inside the tree `key` is set, outside `rid`.
struct OutputChunk {
    RequestKey key{};
    std::string rid{};
    std::string text{};
    std::vector<TokenId> tokens{};
    std::vector<float> logprobs{};
    std::vector<std::int32_t> ranks{};
    std::vector<TokenId> top_ids{};
    std::vector<float> top_logprobs{};
    std::vector<float> ids_logprobs{};
    std::vector<Span> spans{};
    std::optional<PromptLogprobs> prompt{};
    std::optional<Routes> routes{};
    std::optional<Supports> supports{};
    std::vector<TokenId> prompt_ids{};
    std::optional<RequestCounts> counts{};
    std::optional<Finish> finish{};
    std::optional<AdapterVersion> adapter{};

    template <class F>
    void fields(F&& f) {
        f("key", key, "the request inside the tree; 0 outside");
        f("rid", rid, "the caller's id; empty inside the tree");
        f("text", text, "the text that these tokens added");
        f("tokens", tokens, "[n], the new output tokens");
        f("logprobs", logprobs, "[n], if asked for");
        f("ranks",
          ranks,
          "[n], if asked for: the rank of each token, from 1, in the distribution of its logprob");
        f("top_ids", top_ids, "[n * top], most probable first");
        f("top_logprobs", top_logprobs, "[n * top]");
        f("ids_logprobs", ids_logprobs, "[n * ids], in the request's order");
        f("spans", spans, "the versions of these tokens, run-length encoded: their tokens sum to n"
        );
        f("prompt", prompt, "prompt logprobs, if asked for: in the first chunk");
        f("routes",
          routes,
          "if requested: a row for each token in `tokens`, of the position before that token; the "
          "first chunk has the prompt's rows, too");
        f("supports", supports, "if requested: the support of each token in `tokens`");
        f("prompt_ids", prompt_ids, "the whole prompt of a turn, if asked for: in the first chunk");
        f("counts", counts, "in the first and the last chunk");
        f("finish", finish, "in the last chunk");
        f("adapter",
          adapter,
          "with counts: the adapter's version that sampled the request's latest token, or will "
          "sample its first; absent: no adapter");
    }
    friend bool operator==(const OutputChunk&, const OutputChunk&) = default;
};

struct Outputs {
    static constexpr std::string_view kType = "outputs";
    static constexpr std::string_view kAbout =
        "data door -> client: the output that a step added to this client's requests.";
    std::vector<OutputChunk> chunks{};

    template <class F>
    void fields(F&& f) {
        f("chunks", chunks, "one per request with new output");
    }
};

// The detokenizer's data about a request. The scheduler forwards them before the request's first
// chunk, on the same socket as chunks.
struct TextOptions {
    std::vector<TokenId> prompt_tail{};
    std::vector<std::string> stop{};
    std::int64_t min_new_tokens = 0;
    bool no_stop_trim = false;
    bool skip_special_tokens = true;
    bool spaces_between_special_tokens = true;
    bool stream = true;
    bool text_output = true;

    template <class F>
    void fields(F&& f) {
        f("prompt_tail",
          prompt_tail,
          "the prompt's last tokens: the context in which the first output token is decoded");
        f("stop", stop, "stop texts");
        f("min_new_tokens", min_new_tokens, "no stop text before this many tokens");
        f("no_stop_trim", no_stop_trim, "keep the stop text");
        f("skip_special_tokens", skip_special_tokens, "leave special tokens out of the text");
        f("spaces_between_special_tokens",
          spaces_between_special_tokens,
          "keep spaces next to special tokens");
        f("stream", stream, "a chunk per step; false: one at the end");
        f("text_output", text_output, "false: tokens pass through without text");
    }
    friend bool operator==(const TextOptions&, const TextOptions&) = default;
};

struct TokenizedRequest {
    static constexpr std::string_view kType = "tokenized_request";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: a validated request. Keys ascend.";
    RequestKey key{};
    RawArray<TokenId> prompt{};
    SamplingParams sampling{};
    LogprobOptions logprobs{};
    std::optional<std::int64_t> routed_experts_start{};
    RawArray<std::uint8_t> routed_experts{};
    TextOptions text{};
    std::int64_t priority = 0;
    KvTolerance kv_tolerance = KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;
    std::vector<std::string> client{};
    std::string adapter{};
    std::optional<std::vector<TokenId>> draft_ids{};
    std::optional<std::string> draft_key{};
    std::optional<ConversationId> conversation{};

    template <class F>
    void fields(F&& f) {
        f("key", key, "ascending; never reused");
        f("prompt", prompt, "token ids");
        f("sampling", sampling, "with a seed; stop strings are in text");
        f("logprobs", logprobs, "which logprobs are reported");
        f("routed_experts_start",
          routed_experts_start,
          "report routes of tokens from this one on; absent: none");
        f("routed_experts",
          routed_experts,
          "[n, layers, per_token] (RouteShape): the experts that the prompt's first n tokens use");
        f("text", text, "passed on to the detokenizer");
        f("priority", priority, "requests with a larger number are admitted first");
        f("kv_tolerance", kv_tolerance, "cached prefixes of older weights");
        f("kv_max_lag",
          kv_max_lag,
          "with max_lag: use cached prefixes that are at most this many epochs old");
        f("client",
          client,
          "the request's client: the connection, then the names that it gave "
          "itself");
        f("adapter", adapter, "the adapter to generate with; empty: the model alone");
        f("draft_ids", draft_ids, "texts to draft from; absent: none");
        f("draft_key",
          draft_key,
          "draft from the outputs of requests with this key; absent: of requests with the same "
          "prompt");
        f("conversation",
          conversation,
          "the conversation that this request is a turn of, which may keep the request's pages; "
          "absent: none");
    }
};

// The reason to end a request from outside of the scheduler.
enum class EndCause : std::uint8_t {
    kAbort,     // a caller asked for it; finish.reason is abort
    kStopText,  // the detokenizer found a stop text: no more output is sent
    kPeerGone,  // nobody is left to receive the output: no more is sent
};
template <>
struct EnumNames<EndCause> {
    static constexpr std::array<std::string_view, 3> kNames{"abort", "stop_text", "peer_gone"};
};

struct EndRequests {
    static constexpr std::string_view kType = "end_requests";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: end these requests. May arrive before the request "
        "itself.";
    std::vector<RequestKey> keys{};
    EndCause cause = EndCause::kAbort;
    std::string message{};

    template <class F>
    void fields(F&& f) {
        f("keys", keys, "requests");
        f("cause",
          cause,
          "abort (answered with a final chunk), stop_text or peer_gone (not answered)");
        f("message", message, "abort: becomes finish.message");
    }
};

struct RequestStart {
    RequestKey key{};
    TextOptions text{};

    template <class F>
    void fields(F&& f) {
        f("key", key, "the request");
        f("text", text, "how its text is made");
    }
    friend bool operator==(const RequestStart&, const RequestStart&) = default;
};

struct TokenBatch {
    static constexpr std::string_view kType = "token_batch";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> detokenizer_proc: the output that a step added to all requests.";
    ReplicaId replica{};
    std::vector<RequestStart> starts{};
    std::vector<OutputChunk> chunks{};
    std::vector<RequestKey> drops{};

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "the sender");
        f("starts", starts, "requests whose first chunk is in this batch or later");
        f("chunks", chunks, "one per request that got something");
        f("drops", drops, "requests that end without a further chunk: forget them");
    }
};

struct TextBatch {
    static constexpr std::string_view kType = "text_batch";
    static constexpr std::string_view kAbout =
        "detokenizer_proc -> tokenizer_proc: a token batch with its text. If a stop text ended a "
        "request, its chunk has `finish` with matched_text, and the tokenizer tells the "
        "scheduler.";
    std::vector<OutputChunk> chunks{};
    std::vector<RequestKey> stopped{};

    template <class F>
    void fields(F&& f) {
        f("chunks", chunks, "in the scheduler's order");
        f("stopped", stopped, "requests ended here by a stop text, which the scheduler still runs");
    }
};

// Each returns what is wrong with its argument, or nothing.
std::optional<std::string> invalid_client(const std::vector<std::string>& client);
std::optional<std::string> invalid(const Generate& message);
std::optional<std::string> invalid(const Cancel& message);

}  // namespace pitstop::messages
