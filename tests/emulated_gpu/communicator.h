// An NCCL communicator of one rank: its state, and its collectives in streams. Source: NCCL
// documentation, "Creating a Communicator", "Fault Tolerance", "CUDA Stream Semantics".
//
// Thread: one thread at a time calls a communicator; its collectives run on the GPU's thread.
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

    // Registers this rank. After an error the communicator must not be used.
    [[nodiscard]] ncclResult_t check_in(const ncclUniqueId& id);
    // The answer of ncclCommGetAsyncError, after progress on pending work.
    [[nodiscard]] ncclResult_t poll();
    // The answer of ncclCommGetAsyncError, without progress.
    [[nodiscard]] ncclResult_t peek();
    // Polls until nothing is in progress.
    [[nodiscard]] ncclResult_t wait();
    // Puts the collectives into their streams, now or in a later poll.
    [[nodiscard]] ncclResult_t issue(std::vector<IssuedCollective> issued);
    void begin_finalize();
    // Ends the collectives in streams, unfinished; returns when they have ended.
    void abort();

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int num_ranks() const { return num_ranks_; }
    [[nodiscard]] int gpu() const { return gpu_; }
    [[nodiscard]] bool is_blocking() const { return is_blocking_; }
    [[nodiscard]] bool is_aborted() const { return is_aborted_; }
    [[nodiscard]] CommunicatorState state() const { return state_; }
    [[nodiscard]] Clique& clique() { return *clique_; }

    std::uint64_t turn = 0;        // this rank's turn in the clique; only the GPU's thread uses it
    std::set<void*> registered{};  // handles of registered buffers

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
    ncclResult_t error_ = ncclSuccess;  // sticky
    std::atomic<bool> is_aborted_ = false;
    std::vector<IssuedCollective> pending_{};
    std::size_t polls_left_ = 0;          // polls until `pending_` is put into its streams
    std::shared_ptr<Physical> memory_{};  // GPU memory of a rank that has joined
    Point last_{};                        // the last collective in a stream; the next runs after it
    Random random_;
    std::chrono::steady_clock::time_point next_look_{};  // when to look at the other processes
};

// Keeps the text for ncclGetLastError and returns `result`.
ncclResult_t say(ncclResult_t result, const std::string& what);
[[nodiscard]] const std::string& last_said();

// The work of `issued` in its stream (collectives.cpp).
[[nodiscard]] Work collective_work(
    std::shared_ptr<Communicator> communicator, const IssuedCollective& issued
);
[[nodiscard]] std::size_t element_bytes(ncclDataType_t type);

}  // namespace pitstop::emulator
