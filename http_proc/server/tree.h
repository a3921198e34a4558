// Makes the calls of the tree behind this server awaitable, through the client library. All access
// of http_proc to the engine is here.
//
//   const Result<StatusReply> status = co_await exchange.tree().call(Status{});
//
// Owns:    the client; the names by which open requests may be aborted.
// Thread:  the server's loop, which calls run_callbacks() when ready_fd() is readable.
#pragma once

#include "client/client.h"
#include "http_proc/server/event_pace.h"
#include "http_proc/server/preparations.h"
#include "http_proc/server/request_metrics.h"
#include "http_proc/server/silence.h"
#include "http_proc/server/status_history.h"
#include "http_proc/server/task.h"
#include "http_proc/server/token_texts.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pitstop::http {

class Tree {
  public:
    // REQUIRES: the client has CallbackThread::kCaller.
    explicit Tree(std::unique_ptr<Client> client) : client_(std::move(client)) {}

    [[nodiscard]] Client& client() { return *client_; }
    // Returns the hello of the present tree, which describes the model and the tree.
    [[nodiscard]] const messages::HelloReply& hello();
    // Returns the number of the present tree: facts learned under another number may be wrong now.
    [[nodiscard]] std::uint64_t number() const { return client_->num_trees(); }

    // Sends a call that has one answer (messages/calls.h), on either door.
    template <class Request>
    [[nodiscard]] Later<Result<messages::ReplyTo<Request>>> call(
        Request request, std::chrono::milliseconds timeout = Client::kCallTimeout
    ) {
        Later<Result<messages::ReplyTo<Request>>> later;
        client_->call(
            std::move(request),
            std::function<void(Result<messages::ReplyTo<Request>>)>(
                [setter = later.setter()](Result<messages::ReplyTo<Request>>&& reply) {
                    setter.set(std::move(reply));
                }
            ),
            timeout
        );
        return later;
    }

    // Returns 32 hex digits of random bits from the kernel.
    [[nodiscard]] static std::string random_id();

    // Lets a request be aborted by `name` in addition to its rid: the id of its answer or the rid
    // of its batch. Several requests may share a name.
    void add_name(const std::string& name, const std::string& rid);
    void remove_name(const std::string& name, const std::string& rid);
    [[nodiscard]] bool is_named(const std::string& name) const { return rids_.contains(name); }
    // Returns the rids of this server's open requests with that name. If there are none, returns
    // `name` itself, which may be the rid of another front end's request.
    [[nodiscard]] std::vector<std::string> rids_named(const std::string& name) const;

    [[nodiscard]] TokenTexts& token_texts() { return token_texts_; }
    [[nodiscard]] EventPace& event_pace() { return event_pace_; }
    [[nodiscard]] Silence& silence() { return silence_; }
    [[nodiscard]] StatusHistory& history() { return history_; }
    [[nodiscard]] Preparations& preparations() { return preparations_; }

    // The number of open HTTP requests to generate.
    int num_generating = 0;
    RequestMetrics request_metrics{};

  private:
    std::unique_ptr<Client> client_;
    messages::HelloReply hello_{};
    std::uint64_t hello_number_ = 0;  // the number() of the tree that sent hello_; 0: no tree has
    TokenTexts token_texts_{};
    EventPace event_pace_{};
    Silence silence_{};
    StatusHistory history_{};
    Preparations preparations_{};
    std::unordered_map<std::string, std::vector<std::string>> rids_{};  // by name
};

}  // namespace pitstop::http
