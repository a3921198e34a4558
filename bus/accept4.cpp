// Replaces the C library's accept4 in the program that links this file, and in its libraries
// (libzmq): bus/listener.h has the reason.
#include "bus/listener.h"

namespace {

[[maybe_unused]] const bool is_noted = (pitstop::bus::note_accept4_is_bounded(), true);

}  // namespace

extern "C" __attribute__((visibility("default"))) int accept4(
    int listening_fd, ::sockaddr* address, ::socklen_t* size, int flags
) {
    return pitstop::bus::bounded_accept4(listening_fd, address, size, flags);
}
