// Waits until a socket or a file descriptor has something to read, or a deadline has come. It is
// the one place where a process of the tree waits.
#pragma once

#include "base/time.h"
#include "bus/socket.h"

#include <vector>

namespace pitstop::bus {

class Poller {
  public:
    // Borrows the socket, which outlives the poller. Returns its index.
    std::size_t add(Socket& socket);
    std::size_t add(zmq::socket_t& socket);  // this one carries no Frames: a monitor
    std::size_t add_fd(int fd);

    // Waits up to `deadline`; returns at once if something is there.
    void wait(TimePoint deadline);

    // Tells whether entry `index` had something to read when wait() returned.
    [[nodiscard]] bool is_ready(std::size_t index) const {
        return (items_[index].revents & ZMQ_POLLIN) != 0;
    }

  private:
    std::vector<zmq::pollitem_t> items_{};
};

}  // namespace pitstop::bus
