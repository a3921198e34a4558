// Greetings, status, errors: what a peer says of itself.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/frames.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

struct Hello {
    static constexpr std::string_view kType = "hello";
    static constexpr std::string_view kAbout =
        "client -> either door: first message of a connection. Answered by `hello_reply` or "
        "`error`.";
    int protocol = 0;
    std::string name{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version the client speaks");
        f("name", name, "who the client is, for logs");
    }
};

struct HelloReply {
    static constexpr std::string_view kType = "hello_reply";
    static constexpr std::string_view kAbout =
        "either door -> client: who answers, and what it serves.";
    int protocol = kProtocolVersion;
    std::string server{};
    std::string model{};
    std::string model_path{};
    std::string model_type{};
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t replicas = 0;
    std::int64_t tp = 0;
    std::vector<TokenId> eos_ids{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version the tree speaks");
        f("server", server, "pitstop and its version");
        f("model", model, "the served model's name");
        f("model_path", model_path, "the directory it was loaded from");
        f("model_type", model_type, "its family");
        f("context_len", context_len, "prompt and output together have at most so many tokens");
        f("vocab_size", vocab_size, "token ids are below it");
        f("replicas", replicas, "data-parallel replicas");
        f("tp", tp, "ranks per replica");
        f("eos_ids", eos_ids, "end-of-sequence tokens");
    }
};

struct ErrorReply {
    static constexpr std::string_view kType = "error";
    static constexpr std::string_view kAbout =
        "either door -> client: a message was refused, or a request ended with an error before any "
        "output.";
    std::string rid{};
    CallId call{};
    std::string code{};
    std::string message{};

    template <class F>
    void fields(F&& f) {
        f("rid", rid, "the request refused; empty: none");
        f("call", call, "the call refused; 0: none");
        f("code", code, "the error's code, from the list above");
        f("message", message, "what, which, what is accepted");
    }
};

struct SchedulerHello {
    static constexpr std::string_view kType = "scheduler_hello";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: all workers are loaded; sent once, first.";
    ReplicaId replica{};
    std::string model_type{};
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t pool_tokens = 0;
    std::int64_t page_size = 0;
    std::int64_t queue_len_max = 0;
    std::int64_t tp = 1;
    std::vector<TokenId> eos_ids{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "the sender");
        f("model_type", model_type, "the checkpoint's family");
        f("context_len", context_len, "positions a request may have");
        f("vocab_size", vocab_size, "token ids are below it");
        f("pool_tokens", pool_tokens, "tokens the KV pool holds");
        f("page_size", page_size, "tokens per page");
        f("queue_len_max", queue_len_max, "open requests the scheduler takes");
        f("tp", tp, "ranks");
        f("eos_ids", eos_ids, "end-of-sequence tokens");
        f("epoch", epoch, "the weight version that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
    }
};

struct Status {
    static constexpr std::string_view kType = "status";
    static constexpr std::string_view kAbout =
        "client -> admin door -> every scheduler_proc: answered at once, always, by "
        "`status_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms",
          timeout_ms,
          "past it the call fails naming who did not answer; 0: the default");
    }
};

struct WorkerStatus {
    Rank rank{};
    std::int64_t pid = 0;
    std::string device{};
    std::int64_t weight_bytes = 0;
    std::int64_t kv_bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "tensor-parallel rank");
        f("pid", pid, "process id");
        f("device", device, "where it runs");
        f("weight_bytes", weight_bytes, "bytes of weights");
        f("kv_bytes", kv_bytes, "bytes of KV");
    }
    friend bool operator==(const WorkerStatus&, const WorkerStatus&) = default;
};

// One replica's state.
struct ReplicaStatus {
    static constexpr std::string_view kType = "replica_status";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: its part of a status.";
    CallId call{};
    ReplicaId replica{};
    std::string state{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t num_waiting = 0;
    std::int64_t num_running = 0;
    std::int64_t num_steps = 0;
    std::int64_t steps_in_flight = 0;
    double step_age_s = 0;
    std::int64_t pages_total = 0;
    std::int64_t pages_free = 0;
    std::int64_t pages_cached = 0;
    std::int64_t page_size = 0;
    std::int64_t prompt_tokens_total = 0;
    std::int64_t cached_tokens_total = 0;
    std::int64_t output_tokens_total = 0;
    std::int64_t requests_total = 0;
    std::int64_t retractions_total = 0;
    std::int64_t refused_total = 0;
    std::vector<WorkerStatus> workers{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the tokenizer's number for the call; 0 outside the tree");
        f("replica", replica, "the sender");
        f("state", state, "running, paused, ...");
        f("epoch", epoch, "weight version that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("num_waiting", num_waiting, "requests that hold no pages");
        f("num_running", num_running, "requests in prefill or decode");
        f("num_steps", num_steps, "steps finished");
        f("steps_in_flight", steps_in_flight, "plans sent and not answered");
        f("step_age_s", step_age_s, "seconds since the oldest of them was sent");
        f("pages_total", pages_total, "KV pages");
        f("pages_free", pages_free, "of them free");
        f("pages_cached", pages_cached, "of them held only by the prefix cache");
        f("page_size", page_size, "tokens per page");
        f("prompt_tokens_total", prompt_tokens_total, "prompt tokens of admitted requests");
        f("cached_tokens_total", cached_tokens_total, "of them found in the prefix cache");
        f("output_tokens_total", output_tokens_total, "tokens emitted");
        f("requests_total", requests_total, "requests received");
        f("retractions_total", retractions_total, "retractions");
        f("refused_total", refused_total, "messages refused with nobody to answer");
        f("workers", workers, "one per rank");
    }
};

struct StatusReply {
    static constexpr std::string_view kType = "status_reply";
    static constexpr std::string_view kAbout = "admin door -> client: the whole tree.";
    CallId call{};
    std::string server{};
    std::string model{};
    double uptime_s = 0;
    std::int64_t clients = 0;
    std::int64_t open_requests = 0;
    std::int64_t refused_total = 0;
    std::vector<ReplicaStatus> replicas{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("server", server, "pitstop and its version");
        f("model", model, "the served model's name");
        f("uptime_s", uptime_s, "seconds since the tree was ready");
        f("clients", clients, "clients with open requests");
        f("open_requests", open_requests, "requests not yet answered in full");
        f("refused_total", refused_total, "messages refused at the doors");
        f("replicas", replicas, "one per replica");
    }
};

struct Tokenize {
    static constexpr std::string_view kType = "tokenize";
    static constexpr std::string_view kAbout =
        "client -> data door: encode a text, or decode tokens.";
    CallId call{};
    std::optional<std::string> text{};
    std::optional<std::vector<TokenId>> ids{};
    bool add_special_tokens = true;
    bool skip_special_tokens = false;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("text", text, "encode this; exactly one of text and ids");
        f("ids", ids, "decode these");
        f("add_special_tokens", add_special_tokens, "add the model's own special tokens");
        f("skip_special_tokens", skip_special_tokens, "leave special tokens out of the decoded text"
        );
    }
};

struct TokenizeReply {
    static constexpr std::string_view kType = "tokenize_reply";
    static constexpr std::string_view kAbout =
        "data door -> client: the tokens and the text they decode to.";
    CallId call{};
    std::vector<TokenId> ids{};
    std::string text{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ids", ids, "token ids");
        f("text", text, "their text");
    }
};

std::optional<std::string> invalid(const Hello& message);
std::optional<std::string> invalid(const Status& message);
std::optional<std::string> invalid(const Tokenize& message);

}  // namespace pitstop
