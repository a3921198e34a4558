#include "bus/poller.h"

#include <algorithm>
#include <chrono>

namespace pitstop::bus {

std::size_t Poller::add(Socket& socket) { return add(socket.raw_socket()); }

std::size_t Poller::add(zmq::socket_t& socket) {
    items_.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
    return items_.size() - 1;
}

std::size_t Poller::add_fd(int fd) {
    items_.push_back({nullptr, fd, ZMQ_POLLIN, 0});
    return items_.size() - 1;
}

void Poller::wait(TimePoint deadline) {
    // The time is rounded up: waking a fraction of a millisecond early would spin until
    // the deadline.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const auto bounded =
        std::clamp(left, std::chrono::milliseconds(0), std::chrono::milliseconds(60'000));
    for (zmq::pollitem_t& item : items_) item.revents = 0;
    try {
        zmq::poll(items_.data(), items_.size(), bounded);
    } catch (const zmq::error_t& error) {
        CHECK(error.num() == EINTR || error.num() == ETERM);
    }
}

}  // namespace pitstop::bus
