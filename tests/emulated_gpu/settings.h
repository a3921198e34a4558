// What the environment asks of the emulated machine. Read once per process; a value that is not
// accepted ends the process with a line that says what is.
//
//   PITSTOP_EMULATED_GPUS      how many GPUs the machine has (1)
//   CUDA_VISIBLE_DEVICES       which of them the process sees, by their numbers, and in what order
//                              (all). Up to the first that is none, as CUDA takes it
//   PITSTOP_EMULATED_MEMORY    bytes of each (1 GiB)
//   PITSTOP_EMULATED_CODE      bytes that the code of each kernel takes of them (4096)
//   PITSTOP_EMULATED_CONTEXT   bytes that a process's context takes of each that it uses (a 256th)
//   PITSTOP_EMULATED_NCCL      bytes that a communicator of NCCL's takes of its GPU (a 256th)
//   PITSTOP_EMULATED_GRIDS     many: cooperative kernels of several streams run together (many);
//                              one: they wait for each other's end, as CUDA promises no more
//   PITSTOP_EMULATED_PEERS     1: every GPU can access every other's memory (1); 0: none can
//   PITSTOP_EMULATED_MACHINE   the file that the machine's processes share; two machines have two
//   PITSTOP_EMULATED_POLICY    late: work runs when somebody waits for it; early: at once; random
//   PITSTOP_EMULATED_SEED      of every choice that is left to chance (1)
//   PITSTOP_EMULATED_TOLLS     1: what takes time on a GPU does so here, too (tolls.h); 0: not (0)
//   PITSTOP_EMULATED_FAULTS    calls that fail (faults.h)
//   PITSTOP_EMULATOR_COPIES    late or random: when cp.async and wgmma take place (blocks.h)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::emulator {

enum class Policy : std::uint8_t { kLate, kEarly, kRandom };

struct Settings {
    std::vector<int> visible{};  // the machine's number of each GPU that the process sees;
    int num_gpus = 1;            // so many. A number that has another name is the process's own
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
