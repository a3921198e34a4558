// The client library, with which a front end or a trainer talks to a running tree.
//
//   auto client = Client::connect({.run_dir = "/run/pitstop"});
//   if (!client) return fail(client.error());
//   Generate request;
//   request.text = "Once upon a time";
//   request.sampling.max_new_tokens = 64;
//   Stream stream = (*client)->generate(request);
//   while (auto chunk = stream.next()) fmt::print("{}", chunk->text);
//
// There are three ways to get a request's output: a Stream to pull from, a callback on the client's
// own thread, or a callback on the caller's loop (CallbackThread::kCaller with ready_fd()).
//
// However a request ends, its last chunk has `finish`. If the request was refused or timed out, or
// its tree died, finish.reason is error, with a code and a message.
//
// Owns:    one thread, which owns every socket and all state of requests.
// Thread:  every function may be called from any thread, also from callbacks; functions that wait
//          refuse to be called from callbacks on the client's thread.
// Bounded: at most open_requests_max requests and calls. The library always reads the tree's
//          messages, so that an unread stream never makes this client a slow reader: waiting chunks
//          are joined into one, which is at most the request's whole output.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "client/stream.h"
#include "messages/calls.h"
#include "messages/codec.h"
#include "messages/generation.h"
#include "messages/greeting.h"
#include "messages/status.h"
#include "messages/text_calls.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop {

// The messages that a front end writes and reads are also part of the library.
using messages::Finish;
using messages::FinishReason;
using messages::Generate;
using messages::HelloReply;
using messages::OutputChunk;
using messages::SamplingParams;
using messages::Span;
using messages::StatusReply;
using messages::UpdateReply;
using messages::UpdateWeights;

enum class CallbackThread {
    kIo,      // callbacks run on the client's thread, as chunks arrive; they must not wait
    kCaller,  // callbacks run in run_callbacks(), on the thread that calls it
};

struct ClientOptions {
    std::string run_dir{};         // the tree's run directory; or
    std::string data_endpoint{};   // the data door, as a ZeroMQ endpoint,
    std::string admin_endpoint{};  // the admin door; empty: no admin calls
    std::string key_file{};  // the client's key, made by pitstop keygen, for endpoints at tcp://
    std::string name = "client";  // shown in the tree's logs
    std::chrono::milliseconds connect_timeout{10'000};
    std::size_t open_requests_max = 65536;
    CallbackThread callbacks = CallbackThread::kIo;
};

class IoLoop;

class Client {
  public:
    // Waits until the tree answers, even while it is still starting.
    // Errors: kUnavailable (no answer in time), kUnsupported or kInvalidArgument (another
    // protocol), kPermissionDenied and kNotFound (the run directory, the key's file),
    // kPermissionDenied (a tcp door that refuses this key).
    static Result<std::unique_ptr<Client>> connect(ClientOptions options);

    // Open requests end with kAborted. With kCaller, callbacks that have not run yet never run. If
    // a callback (kIo) destroys the client, the remaining callbacks run inside the destructor. No
    // callback begins after it returns.
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Returns what the tree serves, from the hello of the latest connection.
    [[nodiscard]] messages::HelloReply hello() const;
    // Returns how many trees have answered: grows whenever hello() becomes that of another tree.
    [[nodiscard]] std::uint64_t num_trees() const;
    // Returns false from the loss of a tree until a tree answers at every door again. Requests and
    // calls made meanwhile, and those open at the loss, end at once with kUnavailable: none is kept
    // for another tree.
    [[nodiscard]] bool is_connected() const;

    // Starts a request; an empty rid is replaced by a random one. After `timeout` it ends with
    // kDeadlineExceeded, and is cancelled in the tree.
    [[nodiscard]] Stream generate(
        messages::Generate request, std::chrono::milliseconds timeout = kForever
    );

    // Starts a request whose chunks go to a callback; returns the rid. The last chunk has `finish`.
    std::string generate(
        messages::Generate request, OnChunk on_chunk, std::chrono::milliseconds timeout = kForever
    );

    // Returns the whole output in one chunk. Errors: those of the request; an abort is not one.
    Result<messages::OutputChunk> generate_blocking(
        messages::Generate request, std::chrono::milliseconds timeout = kForever
    );

    // Cancels these requests: each ends with its output so far and finish.reason abort. Ids that
    // are not open are ignored.
    void cancel(std::vector<std::string> rids);

    // Makes a call, which has one answer (calls.h). An abort ends requests that this client has
    // started, and others that it names. The caller leaves `call` at 0. If the message's timeout_ms
    // is 0, the tree gets `timeout` too, so that the tree's error, which names the late part,
    // arrives before this client's.
    template <class Request>
    Result<messages::ReplyTo<Request>> call(
        Request request, std::chrono::milliseconds timeout = kCallTimeout
    ) {
        prepare(request, timeout);
        ASSIGN_OR_RETURN(const messages::Frames reply, call_frames(to_call(request), timeout));
        return read_reply<messages::ReplyTo<Request>>(reply);
    }
    template <class Request>
    CallId call(
        Request request,
        std::function<void(Result<messages::ReplyTo<Request>>)> on_reply,
        std::chrono::milliseconds timeout = kCallTimeout
    ) {
        prepare(request, timeout);
        const CallId id = request.call;
        call_frames(
            to_call(request),
            timeout,
            [on_reply = std::move(on_reply)](Result<messages::Frames> reply) {
                if (!reply) return on_reply(std::move(reply).error());
                on_reply(read_reply<messages::ReplyTo<Request>>(*reply));
            }
        );
        return id;
    }
    // Cancels calls of tokenize and render_chat: the tree stops working on them, and answers with
    // kAborted. Calls that are not open are ignored.
    void cancel_calls(std::vector<CallId> calls);

    Result<messages::StatusReply> status(std::chrono::milliseconds timeout = kCallTimeout) {
        return call(messages::Status{}, timeout);
    }
    Result<messages::TokenizeReply> tokenize(std::string_view text);
    Result<messages::TokenizeReply> detokenize(std::vector<TokenId> ids);
    // Returns the prompt that the model's chat template makes of a chat, as text and tokens.
    // `variables` is a JSON object with `messages` and the template's other variables.
    Result<messages::TokenizeReply> render_chat(std::string_view variables);

    // With CallbackThread::kCaller, the descriptor is readable while callbacks wait. Only for poll
    // and epoll: the caller must not read from it. run_callbacks() runs at most `max` callbacks and
    // returns how many it ran.
    [[nodiscard]] int ready_fd() const;
    std::size_t run_callbacks(std::size_t max = 1024);

    static constexpr std::chrono::milliseconds kForever = Stream::kForever;
    static constexpr std::chrono::milliseconds kCallTimeout{10'000};

  private:
    explicit Client(std::shared_ptr<IoLoop> io) : io_(std::move(io)) {}

    [[nodiscard]] CallId next_call();
    template <class Request>
    void prepare(Request& request, std::chrono::milliseconds timeout) {
        request.call = next_call();
        if constexpr (requires { request.timeout_ms; }) {
            if (request.timeout_ms == 0) request.timeout_ms = timeout.count();
        }
    }
    template <class Reply>
    static Result<Reply> read_reply(const messages::Frames& frames) {
        if (frames.type != Reply::kType) {
            return make_error(
                ErrorCode::kMalformed, "the answer is a '{}', not a '{}'", frames.type, Reply::kType
            );
        }
        return decode<Reply>(frames, messages::UnknownFields::kIgnore);
    }
    struct Call {
        messages::Door door{};
        messages::CallOrder order{};
        CallId id{};
        messages::Frames frames{};
    };
    template <class Request>
    static Call to_call(const Request& request) {
        return {
            messages::CallOf<Request>::kDoor,
            messages::CallOf<Request>::kOrder,
            request.call,
            encode(request)};
    }
    using OnFrames = std::function<void(Result<messages::Frames>)>;
    Result<messages::Frames> call_frames(Call call, std::chrono::milliseconds timeout);
    void call_frames(Call call, std::chrono::milliseconds timeout, OnFrames on_reply);
    void start_call(Call call, std::chrono::milliseconds timeout, OnFrames on_reply);

    std::shared_ptr<IoLoop> io_;  // shared with the streams, which may outlive the client
};

}  // namespace pitstop
