// This is what a handler is given: one request being answered.
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

// This is the connection, as an exchange uses it. Tests put their own in its place.
class Wire {
  public:
    enum class Sent { kDone, kPending, kGone };

    virtual ~Wire() = default;
    // Begins a streamed answer with its head. It leaves with the first bytes of the body, so that
    // an answer can still become an error until there is something to send.
    virtual void begin(Response head) = 0;
    // Takes the bytes, or a copy of what could not be sent at once.
    virtual Sent send(std::string_view bytes) = 0;
    // Resumes `waiter`, after kPending, when all is sent, or never will be.
    virtual void resume_when_sent(std::coroutine_handle<> waiter) = 0;
    [[nodiscard]] virtual bool is_gone() const = 0;
    // Says whom it is with: the address, and a number of the connection's own.
    struct Peer {
        std::string address{};
        std::uint64_t connection = 0;
    };
    [[nodiscard]] virtual Peer peer() const { return {}; }
};

// Returns what a copy of the prompt takes, its parts included.
[[nodiscard]] std::size_t bytes_of(const messages::Generate& prompt);

// Says why an answer waited. Proxies and clients pass what they do not know on.
constexpr std::string_view kWaitedHeader = "x-pitstop-waited";

class Exchange {
  public:
    Exchange(Request request, Grant grant, ServerContext& server, Wire& wire)
        : Exchange(std::move(request), grant, server, wire, MemoryBudget::Share(server.memory())) {}
    // `share` is of the server's memory, for the request's body.
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
    // Tells whether the caller's key opens admin routes: for data routes that have an admin part.
    [[nodiscard]] bool may_admin() const { return grant_ == Grant::kAdmin; }

    // Tells whether data routes are open to the caller: for open routes that have a data part.
    [[nodiscard]] bool may_data() const { return may(grant_, Access::kData); }

    // Returns the client's address, as it is seen here: a proxy's, where one is between.
    [[nodiscard]] std::string address() const { return wire_->peer().address; }

    // Says whose requests take turns with those of others (Generate::client): what its key opens
    // and its address, then the name it gives itself (X-Pitstop-Client), then the connection.
    [[nodiscard]] std::vector<std::string> client() const;

    // Starts a streamed answer; sent with the first write. A handler that has begun returns
    // Response::streamed(), one that has not may still return anything else.
    void begin(Response head) { wire_->begin(std::move(head)); }
    // `waited`: why nothing came before this (a header); empty: it came in time.
    void begin_events(const std::string& waited = {}) {
        Response head = Response::text(200, {});
        head.content_type = "text/event-stream; charset=utf-8";
        head.headers.push_back({"cache-control", "no-cache"});
        if (!waited.empty()) head.headers.push_back({std::string(kWaitedHeader), waited});
        begin(std::move(head));
    }

    // Sends some of the body. co_await gives false when the client will not get it: it is gone, or
    // has not read for the server's write timeout. One at a time; what could not be sent at once is
    // copied.
    struct [[nodiscard]] Write {
        Wire& wire;
        Wire::Sent sent;

        bool await_ready() const noexcept { return sent != Wire::Sent::kPending; }
        void await_suspend(std::coroutine_handle<> waiter) { wire.resume_when_sent(waiter); }
        bool await_resume() const { return sent != Wire::Sent::kGone && !wire.is_gone(); }
    };
    Write write(std::string_view bytes) {
        if (bytes.empty()) return {*wire_, Wire::Sent::kDone};  // an empty chunk would be the end
        return {*wire_, wire_->send(bytes)};
    }

    // Takes memory of the server's budget for a prompt. REQUIRES: called before it is copied.
    // Errors: kTooLarge (it never fits), kResourceExhausted (others hold too much now).
    struct Copies {
        std::int64_t num_copies = 1;  // one per sample, until let_go()
        std::int64_t num_kept = 0;    // besides, to the end: those that the answer shows
        std::size_t kept_bytes = 0;   // likewise, of what else it shows of its request
    };
    [[nodiscard]] Result<> hold(const messages::Generate& prompt, Copies copies);
    // The prompts are with the tree: frees the request's body, and their share of the budget.
    void let_go();

    [[nodiscard]] bool is_gone() const { return wire_->is_gone(); }
    // Is called once if the client goes away or the server stops while the handler runs; at once if
    // that has happened. It ends what the handler waits for, and destroys nothing. Null: none.
    void on_gone(std::function<void()> callback) {
        if (callback && is_gone()) return callback();
        on_gone_ = std::move(callback);
    }
    // The server calls this when on_gone()'s callback is due.
    void say_gone() {
        if (auto callback = std::exchange(on_gone_, nullptr)) callback();
    }

  private:
    Request request_;
    Grant grant_;
    ServerContext* server_;
    Wire* wire_;
    MemoryBudget::Share share_;
    std::size_t kept_bytes_ = 0;  // what it keeps of its share to the end
    std::function<void()> on_gone_{};
};

}  // namespace pitstop::http
