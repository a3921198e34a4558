// cp.async: when a thread's copies take place. Source: PTX ISA, "cp.async".
#include "tests/emulated_gpu/blocks.h"

#include <cstring>

namespace pitstop::emulator {
namespace {

void perform(const std::vector<AsyncCopy>& copies) {
    for (const AsyncCopy& copy : copies) {
        std::byte bytes[16] = {};
        if (copy.src_bytes != 0) std::memcpy(bytes, copy.from, copy.src_bytes);
        std::memcpy(copy.to, bytes, sizeof bytes);
        note_copy(copy.to, sizeof bytes);
    }
}

}  // namespace

void copy_async(void* to, const void* from, std::uint32_t src_bytes) {
    check_shared(to, 16, 16);
    if (src_bytes != 0) check_aligned(from, 16);
    const AsyncCopy copy{to, from, src_bytes};
    if (current->groups.empty()) current->groups.emplace_back();
    if (is_at_once()) {
        perform({copy});
    } else {
        current->groups.back().push_back(copy);
    }
}

void commit_copies() {
    if (current->groups.empty()) current->groups.emplace_back();
    current->groups.emplace_back();
}

void wait_copies(int num_pending) {
    auto& groups = current->groups;  // the last one is open: nothing waits for it
    while (groups.size() > static_cast<std::size_t>(num_pending) + 1) {
        perform(groups.front());
        groups.erase(groups.begin());
    }
}

}  // namespace pitstop::emulator
