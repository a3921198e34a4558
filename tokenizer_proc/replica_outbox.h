// The messages for the replicas: requests and control messages. The control messages of one replica
// keep their order.
//
// Thread:  the loop thread only.
// Bounded: by the open requests and the open calls.
#pragma once

#include "base/ids.h"
#include "messages/frames.h"

#include <deque>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

enum class ReplicaSocket { kRequests, kControl };

// A message for a replica. Control messages of one replica keep their order.
struct ToReplica {
    ReplicaId replica{};
    ReplicaSocket socket = ReplicaSocket::kControl;
    messages::Frames frames{};
    RequestKey key{};  // kRequests: the request's key
};

class ReplicaOutbox {
  public:
    explicit ReplicaOutbox(int num_replicas) : num_replicas_(num_replicas) {}

    // Adds a request. If the queue is full, the next turn reports it.
    void add_request(ReplicaId replica, RequestKey key, messages::Frames frames) {
        requests_.push_back({replica, ReplicaSocket::kRequests, std::move(frames), key});
    }
    void add_control(ReplicaId replica, messages::Frames frames) {
        control_.push_back({replica, ReplicaSocket::kControl, std::move(frames), {}});
    }
    // Adds the message once for each replica.
    void add_control_to_all(const messages::Frames& frames) {
        for (int i = 0; i < num_replicas_; ++i) add_control(ReplicaId{i}, frames);
    }
    // Takes back a control message that found a queue full. Call in reverse order, last one first.
    void requeue(ToReplica control) { control_.push_front(std::move(control)); }

    // Returns all messages to send: requests first, then control messages.
    [[nodiscard]] std::vector<ToReplica> take() {
        for (ToReplica& message : std::exchange(control_, {}))
            requests_.push_back(std::move(message));
        return std::exchange(requests_, {});
    }

  private:
    int num_replicas_;
    std::vector<ToReplica> requests_{};  // this turn's
    std::deque<ToReplica> control_{};    // those that found a queue full, then those of this turn
};

}  // namespace pitstop::tokenizer
