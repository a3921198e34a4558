// The settings of the emulated machine, from the environment, with their defaults in parentheses.
// Read once per process. A wrong value ends the process with a line that names the accepted ones.
//
//   PITSTOP_EMULATED_GPUS      number of GPUs (1)
//   CUDA_VISIBLE_DEVICES       the numbers of the GPUs that the process sees, in its order (all).
//                              Numbers after the first invalid one are ignored, as by CUDA
//   PITSTOP_EMULATED_MEMORY    bytes per GPU (1 GiB)
//   PITSTOP_EMULATED_CODE      bytes of GPU memory that each kernel's code uses (4096)
//   PITSTOP_EMULATED_CONTEXT   bytes per GPU that a process's context uses (a 256th)
//   PITSTOP_EMULATED_NCCL      bytes per GPU that an NCCL communicator uses (a 256th)
//   PITSTOP_EMULATED_GRIDS     many: cooperative kernels of several streams run together (many);
//                              one: each waits for the end of the one before, as CUDA permits
//   PITSTOP_EMULATED_PEERS     1: every GPU can access every other's memory (1); 0: none can
//   PITSTOP_EMULATED_MACHINE   a file that the machine's processes share: one file per machine
//   PITSTOP_EMULATED_POLICY    late: work runs when a call waits for it; early: at once; random
//                              (random)
//   PITSTOP_EMULATED_SEED      seed of all random choices (1)
//   PITSTOP_EMULATED_TOLLS     1: calls take as long as on a GPU (tolls.h); 0: they do not (0)
//   PITSTOP_EMULATED_FAULTS    calls that fail (faults.h; none)
//   PITSTOP_EMULATOR_COPIES    late or random: when cp.async and wgmma take place (blocks.h)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::emulator {

enum class Policy : std::uint8_t { kLate, kEarly, kRandom };

struct Settings {
    std::vector<int> visible{};  // number on the machine of each GPU that the process sees
    int num_gpus = 1;            // visible.size(); the process numbers its GPUs from 0
    std::int64_t memory_bytes = std::int64_t{1} << 30;
    std::int64_t code_bytes = std::int64_t{4} << 10;
    std::int64_t context_bytes = 0;
    std::int64_t nccl_bytes = 0;
    bool runs_grids_together = true;
    bool has_peer_access = true;
    std::string machine{};
    Policy policy = Policy::kRandom;
    std::uint64_t seed = 1;
    bool has_tolls = false;
    std::string faults{};
};

[[nodiscard]] const Settings& settings();

}  // namespace pitstop::emulator
