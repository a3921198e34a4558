// The argument of a handler: one request that is being answered.
//
//   Task<Response> count(Exchange& exchange) {
//       exchange.begin_events();                         // 200, text/event-stream
//       for (int i = 0; i < 3; ++i) {
//           const std::string event = fmt::format("data: {}\n\n", i);
//           if (!co_await exchange.write(event)) break;  // the client is gone, or reads too slowly
//       }
//       co_return Response::streamed();
//   }
//
// Thread: the server's loop.
#pragma once

#include "base/result.h"
#include "http_proc/format/keys.h"
#include "http_proc/format/message.h"
#include "http_proc/server/memory_budget.h"
#include "http_proc/server/server_context.h"
#include "http_proc/server/task.h"
#include "messages/generation.h"

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {

// The connection, as an exchange uses it. Tests use an implementation of their own.
class Wire {
  public:
    enum class Sent { kDone, kPending, kGone };

    virtual ~Wire() = default;
    // Begins a streamed answer with its head. The head is sent together with the body's first
    // bytes: until then, the answer can still become an error.
    virtual void begin(Response head) = 0;
    // Sends the bytes; copies those that the socket does not accept at once.
    virtual Sent send(std::string_view bytes) = 0;
    // After kPending: resumes `waiter` when all bytes are sent, or can no longer be sent.
    virtual void resume_when_sent(std::coroutine_handle<> waiter) = 0;
    [[nodiscard]] virtual bool is_gone() const = 0;
    // The client's address and the number of its connection.
    struct Peer {
        std::string address{};
        std::uint64_t connection = 0;
    };
    [[nodiscard]] virtual Peer peer() const { return {}; }
};

// Returns the memory that a copy of the prompt uses, its parts included.
[[nodiscard]] std::size_t bytes_of(const messages::Generate& prompt);

// The header with the reason for which an answer waited. Proxies and clients pass on headers that
// they do not know.
constexpr std::string_view kWaitedHeader = "x-pitstop-waited";

class Exchange {
  public:
    Exchange(Request request, Grant grant, ServerContext& server, Wire& wire)
        : Exchange(std::move(request), grant, server, wire, MemoryBudget::Share(server.memory())) {}
    // `share`: the part of the server's memory budget for the request's body.
    Exchange(
        Request request, Grant grant, ServerContext& server, Wire& wire, MemoryBudget::Share share
    )
        : request_(std::move(request)),
          grant_(grant),
          server_(&server),
          wire_(&wire),
          share_(std::move(share)) {}
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    [[nodiscard]] const Request& request() const { return request_; }
    [[nodiscard]] ServerContext& server() const { return *server_; }
    [[nodiscard]] Tree& tree() const { return server_->tree(); }
    // Returns whether the caller's key allows admin routes; for data routes with an admin part.
    [[nodiscard]] bool may_admin() const { return grant_ == Grant::kAdmin; }

    // Returns whether the caller may use data routes; for open routes with a data part.
    [[nodiscard]] bool may_data() const { return may(grant_, Access::kData); }

    // Returns the client's address as this server sees it; behind a proxy, that is the proxy's.
    [[nodiscard]] std::string address() const { return wire_->peer().address; }

    // Returns the client's names for fair scheduling (Generate::client), outermost first: the
    // rights of its key with its address, the name in its X-Pitstop-Client header, its connection.
    [[nodiscard]] std::vector<std::string> client() const;

    // Starts a streamed answer; the first write sends its head. After begin(), a handler must
    // return Response::streamed(); before, it may return any answer.
    void begin(Response head) { wire_->begin(std::move(head)); }
    // `waited`: why no output arrived earlier, sent as a header; empty: output arrived in time.
    void begin_events(const std::string& waited = {}) {
        Response head = Response::text(200, {});
        head.content_type = "text/event-stream; charset=utf-8";
        head.headers.push_back({"cache-control", "no-cache"});
        if (!waited.empty()) head.headers.push_back({std::string(kWaitedHeader), waited});
        begin(std::move(head));
    }

    // Sends a part of the body. co_await returns false if the client cannot get it: the client
    // left, or has read nothing for the server's write timeout. One write at a time. Copies bytes
    // that the socket does not accept at once.
    struct [[nodiscard]] Write {
        Wire& wire;
        Wire::Sent sent;

        bool await_ready() const noexcept { return sent != Wire::Sent::kPending; }
        void await_suspend(std::coroutine_handle<> waiter) { wire.resume_when_sent(waiter); }
        bool await_resume() const { return sent != Wire::Sent::kGone && !wire.is_gone(); }
    };
    Write write(std::string_view bytes) {
        if (bytes.empty()) return {*wire_, Wire::Sent::kDone};  // an empty chunk would end the body
        return {*wire_, wire_->send(bytes)};
    }

    // Reserves memory of the server's budget for a prompt. Errors: kTooLarge (the prompt never
    // fits), kResourceExhausted (other requests use too much memory now). REQUIRES: the prompt has
    // not been copied yet.
    struct Copies {
        std::int64_t num_copies = 1;  // one per sample, until let_go()
        std::int64_t num_kept = 0;    // more copies that the answer shows, kept to the end
        // bytes of other parts of the request that the answer shows, kept to the end
        std::size_t kept_bytes = 0;
    };
    [[nodiscard]] Result<> hold(const messages::Generate& prompt, Copies copies);
    // Called when the tree has the prompts: frees the request's body, and the part of the budget
    // that was for sending the prompts.
    void let_go();

    // Called when the handler has passed on a call with weights, or the call has no weights.
    // Without this call, the tree is told of a refusal (Route::brings_weights).
    void set_known_to_tree() { is_known_to_tree_ = true; }
    [[nodiscard]] bool is_known_to_tree() const { return is_known_to_tree_; }

    [[nodiscard]] bool is_gone() const { return wire_->is_gone(); }
    // Sets a callback, called once if the client leaves or the server stops while the handler runs;
    // called at once if that has already happened. The callback ends the handler's waits, and
    // destroys nothing. Null: no callback.
    void on_gone(std::function<void()> callback) {
        if (callback && is_gone()) return callback();
        on_gone_ = std::move(callback);
    }
    // Called by the server when on_gone()'s callback is due.
    void say_gone() {
        if (auto callback = std::exchange(on_gone_, nullptr)) callback();
    }

  private:
    Request request_;
    Grant grant_;
    ServerContext* server_;
    Wire* wire_;
    MemoryBudget::Share share_;
    bool is_known_to_tree_ = false;
    std::size_t kept_bytes_ = 0;  // the part of share_ that is kept to the end
    std::function<void()> on_gone_{};
};

}  // namespace pitstop::http
