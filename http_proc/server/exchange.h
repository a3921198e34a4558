// The argument of a handler: one request being answered.
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

// The connection as an exchange uses it. Tests substitute their own.
class Wire {
  public:
    enum class Sent { kDone, kPending, kGone };

    virtual ~Wire() = default;
    // Begins a streamed answer with its head. The head is sent with the first bytes of the body, so
    // that the answer can still become an error until then.
    virtual void begin(Response head) = 0;
    // Sends the bytes, or copies what could not be sent at once.
    virtual Sent send(std::string_view bytes) = 0;
    // Resumes `waiter`, after kPending, when everything is sent, or never will be.
    virtual void resume_when_sent(std::coroutine_handle<> waiter) = 0;
    [[nodiscard]] virtual bool is_gone() const = 0;
    // The client: its address, and the connection's number.
    struct Peer {
        std::string address{};
        std::uint64_t connection = 0;
    };
    [[nodiscard]] virtual Peer peer() const { return {}; }
};

// Returns the memory of a copy of the prompt, including its parts.
[[nodiscard]] std::size_t bytes_of(const messages::Generate& prompt);

// The header that says why an answer waited. Proxies and clients pass on headers that
// they do not know.
constexpr std::string_view kWaitedHeader = "x-pitstop-waited";

class Exchange {
  public:
    Exchange(Request request, Grant grant, ServerContext& server, Wire& wire)
        : Exchange(std::move(request), grant, server, wire, MemoryBudget::Share(server.memory())) {}
    // `share`: of the server's memory budget, for the request's body.
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
    // Returns whether the caller's key opens admin routes: for data routes that have an admin part.
    [[nodiscard]] bool may_admin() const { return grant_ == Grant::kAdmin; }

    // Returns whether the caller may use data routes: for open routes that have a data part.
    [[nodiscard]] bool may_data() const { return may(grant_, Access::kData); }

    // Returns the client's address as this server sees it: behind a proxy, the proxy's.
    [[nodiscard]] std::string address() const { return wire_->peer().address; }

    // Returns the client's names for taking turns (Generate::client): first its key's rights and
    // its address, then the name in its X-Pitstop-Client header, then the connection.
    [[nodiscard]] std::vector<std::string> client() const;

    // Starts a streamed answer, which the first write sends. A handler that has begun must return
    // Response::streamed(); before that, it may return anything else.
    void begin(Response head) { wire_->begin(std::move(head)); }
    // `waited`: why nothing arrived earlier (sent as a header); empty: output arrived in time.
    void begin_events(const std::string& waited = {}) {
        Response head = Response::text(200, {});
        head.content_type = "text/event-stream; charset=utf-8";
        head.headers.push_back({"cache-control", "no-cache"});
        if (!waited.empty()) head.headers.push_back({std::string(kWaitedHeader), waited});
        begin(std::move(head));
    }

    // Sends part of the body. co_await returns false if the client will not get it: it is gone, or
    // has not read for the server's write timeout. One at a time; bytes that could not be sent at
    // once are copied.
    struct [[nodiscard]] Write {
        Wire& wire;
        Wire::Sent sent;

        bool await_ready() const noexcept { return sent != Wire::Sent::kPending; }
        void await_suspend(std::coroutine_handle<> waiter) { wire.resume_when_sent(waiter); }
        bool await_resume() const { return sent != Wire::Sent::kGone && !wire.is_gone(); }
    };
    Write write(std::string_view bytes) {
        if (bytes.empty()) return {*wire_, Wire::Sent::kDone};  // an empty chunk would mean the end
        return {*wire_, wire_->send(bytes)};
    }

    // Reserves memory of the server's budget for a prompt. REQUIRES: called before copying
    // it. Errors: kTooLarge (it never fits), kResourceExhausted (other requests use too much
    // at the moment).
    struct Copies {
        std::int64_t num_copies = 1;  // one per sample, until let_go()
        std::int64_t num_kept = 0;    // additional copies, kept to the end, that the answer shows
        // other parts of the request that the answer shows, kept to the end
        std::size_t kept_bytes = 0;
    };
    [[nodiscard]] Result<> hold(const messages::Generate& prompt, Copies copies);
    // Called when the tree has the prompts: frees the request's body, and the prompts' part
    // of the budget.
    void let_go();

    // Called when the handler has passed on a call with weights, or the call has none. Otherwise,
    // the tree is told if the call is refused (Route::brings_weights).
    void set_known_to_tree() { is_known_to_tree_ = true; }
    [[nodiscard]] bool is_known_to_tree() const { return is_known_to_tree_; }

    [[nodiscard]] bool is_gone() const { return wire_->is_gone(); }
    // `callback` is called once if the client leaves or the server stops while the handler runs; at
    // once if that has happened already. The callback ends the handler's waits, and destroys
    // nothing. Null: no callback.
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
    std::size_t kept_bytes_ = 0;  // the part of its share that is kept to the end
    std::function<void()> on_gone_{};
};

}  // namespace pitstop::http
