// An NCCL communicator of one rank: what it has in its streams, and in what state it is. Source:
// NCCL documentation, "Creating a Communicator", "Fault Tolerance", "CUDA Stream Semantics".
//
// Thread: the calls of one communicator come from one thread at a time; its collectives run on the
// GPU's.
#pragma once

#include "tests/emulated_gpu/clique.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/streams.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace pitstop::emulator {

enum class CommunicatorState : std::uint8_t { kJoining, kReady, kFinalizing, kFinalized };

struct IssuedCollective {
    Collective collective{};
    const void* from = nullptr;
    void* to = nullptr;
    std::shared_ptr<Stream> stream{};
};

class Communicator : public std::enable_shared_from_this<Communicator> {
  public:
    Communicator(int num_ranks, int rank, int gpu, bool is_blocking);

    // Takes its place among the ranks. Not a success: it is not to be used.
    [[nodiscard]] ncclResult_t check_in(const ncclUniqueId& id);
    // What ncclCommGetAsyncError says; of a poll things also go on.
    [[nodiscard]] ncclResult_t poll();
    // The same, and nothing goes on.
    [[nodiscard]] ncclResult_t peek();
    // Until nothing is in progress.
    [[nodiscard]] ncclResult_t wait();
    // Puts them into their streams, now or with a later poll.
    [[nodiscard]] ncclResult_t issue(std::vector<IssuedCollective> issued);
    void begin_finalize();
    // What it has in streams ends with what it has; returns when it has ended.
    void abort();

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int num_ranks() const { return num_ranks_; }
    [[nodiscard]] int gpu() const { return gpu_; }
    [[nodiscard]] bool is_blocking() const { return is_blocking_; }
    [[nodiscard]] bool is_aborted() const { return is_aborted_; }
    [[nodiscard]] CommunicatorState state() const { return state_; }
    [[nodiscard]] Clique& clique() { return *clique_; }

    std::uint64_t turn = 0;        // of the clique, this rank's; the GPU's thread alone uses it
    std::set<void*> registered{};  // handles of buffers

  private:
    [[nodiscard]] ncclResult_t try_to_join();
    [[nodiscard]] ncclResult_t find_loss();
    void launch();

    int num_ranks_;
    int rank_;
    int gpu_;
    bool is_blocking_;
    CommunicatorState state_ = CommunicatorState::kJoining;
    std::shared_ptr<Clique> clique_{};
    ncclResult_t error_ = ncclSuccess;  // stays
    std::atomic<bool> is_aborted_ = false;
    std::vector<IssuedCollective> pending_{};
    std::size_t polls_left_ = 0;          // until what is pending is in its streams
    std::shared_ptr<Physical> memory_{};  // of the GPU, from the joining on
    Point last_{};                        // of what is in streams: one runs after the other
    Random random_;
    std::chrono::steady_clock::time_point next_look_{};  // at the other processes
};

// Keeps the text for ncclGetLastError and returns `result`.
ncclResult_t say(ncclResult_t result, const std::string& what);
[[nodiscard]] const std::string& last_said();

// What `issued` is in a stream (collectives.cpp).
[[nodiscard]] Work collective_work(
    std::shared_ptr<Communicator> communicator, const IssuedCollective& issued
);
[[nodiscard]] std::size_t element_bytes(ncclDataType_t type);

}  // namespace pitstop::emulator
