// The greetings between peers, and the report of a refusal.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/fields.h"
#include "messages/frames.h"
#include "messages/routes.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

struct Hello {
    static constexpr std::string_view kType = "hello";
    static constexpr std::string_view kAbout =
        "client -> either door: first message of a connection. Answered by `hello_reply` or "
        "`error`.";
    int protocol = 0;
    std::string name{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version of the client");
        f("name", name, "the client's name, for logs");
    }
};

struct HelloReply {
    static constexpr std::string_view kType = "hello_reply";
    static constexpr std::string_view kAbout =
        "either door -> client: the identity of the tree, and what it serves.";
    int protocol = 0;
    std::string server{};
    std::string model{};
    std::string model_path{};
    std::string model_type{};
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t replicas = 0;
    std::int64_t tp = 0;
    std::vector<TokenId> eos_ids{};
    std::optional<RouteShape> routes{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version of the tree");
        f("server", server, "pitstop and its version");
        f("model", model, "the served model's name");
        f("model_path", model_path, "the directory that the model was loaded from");
        f("model_type", model_type, "the model's family: model_type of its config.json");
        f("context_len", context_len, "tokens that prompt and output together may have");
        f("vocab_size", vocab_size, "token ids are less than this");
        f("replicas", replicas, "data-parallel replicas");
        f("tp", tp, "ranks per replica");
        f("eos_ids", eos_ids, "end-of-sequence tokens");
        f("routes", routes, "the shape of a row of routes; absent: the model has no experts");
    }
};

struct ErrorReply {
    static constexpr std::string_view kType = "error";
    static constexpr std::string_view kAbout =
        "either door -> client: a message was refused, or a request ended with an error before "
        "any output.";
    std::string rid{};
    CallId call{};
    Error error{};

    template <class F>
    void fields(F&& f) {
        f("rid", rid, "the refused request; empty: none");
        f("call", call, "the refused call; 0: none");
        f("code", error.code, "the error's code, from the list above");
        f("message", error.message, "what failed, which one, what is accepted");
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
    bool has_weights = true;
    std::optional<RouteShape> routes{};
    std::vector<std::int64_t> dense_layers{};

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "the sender");
        f("model_type", model_type, "the checkpoint's family");
        f("context_len", context_len, "positions that a request may have");
        f("vocab_size", vocab_size, "token ids are less than this");
        f("pool_tokens", pool_tokens, "tokens of the KV pool");
        f("page_size", page_size, "tokens per page");
        f("queue_len_max", queue_len_max, "open requests that the scheduler accepts");
        f("tp", tp, "ranks");
        f("eos_ids", eos_ids, "end-of-sequence tokens");
        f("epoch", epoch, "the weight version that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("has_weights", has_weights, "false: it waits for a first complete update");
        f("routes", routes, "the shape of a row of routes; absent: none can be reported");
        f("dense_layers", dense_layers, "with routes: the layers without experts, ascending");
    }
};

std::optional<std::string> invalid(const Hello& message);
std::optional<std::string> invalid(const SchedulerHello& message);

}  // namespace pitstop::messages
