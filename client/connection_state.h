// The state of the client's connections, which the client's thread publishes to other threads:
// whether every door has greeted back, the tree's hello, or why a door refused.
//
// Thread:  publish() and disconnect() on the client's loop; the other functions on any thread.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "client/link.h"
#include "messages/greeting.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pitstop {

class ConnectionState {
  public:
    // Publishes the state of all links, the data door's first.
    void publish(std::span<const Link> links);
    // Called when the client ends: no door is connected any more.
    void disconnect() { is_connected_ = false; }

    [[nodiscard]] bool is_connected() const { return is_connected_; }
    [[nodiscard]] messages::HelloReply hello() const;
    // Returns how many trees have greeted back: hello() is that of the last.
    [[nodiscard]] std::uint64_t num_trees() const { return num_trees_; }
    // Waits until every door has greeted back. Errors: the refusal of a door; kUnavailable, with
    // the endpoint, if the time ran out.
    Result<> wait_ready(std::chrono::milliseconds timeout, std::string_view endpoint);

  private:
    std::string published_tree_{};  // the tree whose hello is in hello_; the loop's thread only
    std::atomic<bool> is_connected_{false};
    std::atomic<std::uint64_t> num_trees_{0};
    mutable Mutex mutex_;
    Condition changed_;
    messages::HelloReply hello_ GUARDED_BY(mutex_){};
    std::optional<Error> refusal_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop
