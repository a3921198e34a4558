// What the client's thread last told the others of its connections: whether every door has greeted
// back, what the tree said, or why a door refused.
//
// Thread:  publish() and disconnect() on the client's loop; the others on any thread.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "client/link.h"
#include "messages/greeting.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pitstop {

class ConnectionState {
  public:
    // Tells the state of all links, the data door's first.
    void publish(std::span<const Link> links);
    // The client ends: no door is connected any more.
    void disconnect() { is_connected_ = false; }

    [[nodiscard]] bool is_connected() const { return is_connected_; }
    [[nodiscard]] messages::HelloReply hello() const;
    // Waits until every door has greeted back. Errors: a door refused, or the time ran out, which
    // names the endpoint.
    Result<> wait_ready(std::chrono::milliseconds timeout, std::string_view endpoint);

  private:
    std::string published_tree_{};  // the tree whose hello is in hello_; the loop's thread only
    std::atomic<bool> is_connected_{false};
    mutable Mutex mutex_;
    Condition changed_;
    messages::HelloReply hello_ GUARDED_BY(mutex_){};
    std::optional<Error> refusal_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop
