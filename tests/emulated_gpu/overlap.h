// How a kernel of a graph runs beside the one before it: programmatic dependent launch. Its blocks
// may begin when each block of that one has said so or has ended, and what they do before they wait
// for it is done while it runs. Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch
// and Synchronization"; PTX ISA, "griddepcontrol".
#pragma once

#include <cstdint>
#include <functional>

namespace pitstop::emulator {

struct Overlap {
    bool may_next_start = false;               // all blocks have said so, or have ended
    std::function<bool()> is_previous_done{};  // null: it was when this one began
};

// Kernels that began before the one before them had ended, since the program started.
[[nodiscard]] std::int64_t num_early_starts();

}  // namespace pitstop::emulator
