// A graph's kernel that overlaps with the previous one: programmatic dependent launch. Its blocks
// may begin when each block of the previous kernel has allowed it or has ended; the work before
// their wait runs at the same time. Source: CUDA C++ Programming Guide, "Programmatic Dependent
// Launch and Synchronization"; PTX ISA, "griddepcontrol".
#pragma once

#include <cstdint>
#include <functional>

namespace pitstop::emulator {

struct Overlap {
    bool may_next_start = false;  // all blocks have allowed it, or have ended
    std::function<bool()>
        is_previous_done{};  // null: the previous kernel had ended when this one began
};

// Kernels that began before the previous ones had ended, since the program started.
[[nodiscard]] std::int64_t num_early_starts();

}  // namespace pitstop::emulator
