// Waits until a socket or a file descriptor is readable, or until a deadline. A process of the tree
// waits nowhere else.
#pragma once

#include "base/time.h"
#include "bus/socket.h"

#include <vector>

namespace pitstop::bus {

class Poller {
  public:
    // Borrows the socket, which outlives the poller. Returns its index.
    std::size_t add(Socket& socket);
    std::size_t add(zmq::socket_t& socket);  // a socket that carries no Frames: a monitor
    std::size_t add_fd(int fd);

    // Waits up to `deadline`; returns at once if anything is readable.
    void wait(TimePoint deadline);

    // Returns whether entry `index` was readable when wait() returned.
    [[nodiscard]] bool is_ready(std::size_t index) const {
        return (items_[index].revents & ZMQ_POLLIN) != 0;
    }

  private:
    std::vector<zmq::pollitem_t> items_{};
};

}  // namespace pitstop::bus
