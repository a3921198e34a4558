// NCCL on the opened GPU (cuda_device.h): the library, opened at run time where cuda_libraries.h
// finds it, and communicators that never wait. Every call may leave work in progress. The caller
// polls for its end instead of waiting, so that the caller's own deadline holds (P5), and calls
// abort() if the work does not end. Names no CUDA and no NCCL type.
//
// A failing call is an Error, not the end of the process: NCCL fails because of peers. If the GPU
// itself is broken, the next CUDA call ends the process.
//
// Source: NCCL documentation, "Creating a communicator with options", "Fault Tolerance",
//         ncclCommInitRankConfig, ncclCommGetAsyncError, ncclCommAbort.
#pragma once

#include "base/result.h"
#include "kernels/runtime/stream.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

struct NcclLibrary {
    std::string path{};
    int version = 0;                                 // in NCCL's code: 22809
    [[nodiscard]] std::string version_text() const;  // "2.28.9"
};
// Opens the process's NCCL, once; later calls return the same failure. Peers must have the same
// version, to the patch. Errors: kNotFound (none was found); kUnavailable (the loader refuses it);
// kUnsupported (older than 2.18, or a symbol is missing).
[[nodiscard]] Result<NcclLibrary> load_nccl();

inline constexpr std::size_t kNcclIdBytes = 128;

// Makes a new group's unique id, kNcclIdBytes long, for all its ranks: they meet at this
// process, which must live until they have joined. Errors: load_nccl()'s, kUnsupported (no GPU
// is open), and NCCL's.
[[nodiscard]] Result<std::string> make_nccl_id();

// The element types of a broadcast, by NCCL's numbers.
enum class NcclType : int {
    kBytes = 1,  // uint8
    kI32 = 2,
    kI64 = 4,
    kF16 = 6,
    kF32 = 7,
    kF64 = 8,
    kBf16 = 9,
};
[[nodiscard]] std::int64_t bytes_of(NcclType type);

// One rank of an NCCL group.
//
// Owns:   the communicator; the destructor aborts it.
// Thread: one at a time.
// Errors: kUnavailable (a peer is gone, a network fails), kFailedPrecondition (NCCL calls it
//         invalid usage: two ranks on one GPU, another number of ranks), kInvalidArgument,
//         kInternal. After an error, only abort() is useful.
class NcclCommunicator {
  public:
    struct Args {
        std::string_view id{};  // kNcclIdBytes, the same for all ranks
        int num_ranks = 0;
        int rank = 0;
        // The thread blocks of a collective. The blocks spin until the peers arrive, and take up to
        // as many multiprocessors from steps. 0: NCCL's default.
        int max_ctas = 0;
    };
    // Begins to join; other ranks need not exist yet. Errors besides the class's: load_nccl()'s,
    // kUnsupported (no GPU is open).
    [[nodiscard]] static Result<NcclCommunicator> begin(const Args& args);
    NcclCommunicator(NcclCommunicator&& other) noexcept
        : comm_(std::exchange(other.comm_, nullptr)) {}
    NcclCommunicator& operator=(NcclCommunicator&& other) noexcept {
        std::swap(comm_, other.comm_);
        return *this;
    }
    ~NcclCommunicator() { abort(); }

    // Returns whether the latest call is complete: joined, or enqueued on its stream. No other call
    // is allowed before.
    [[nodiscard]] Result<bool> is_ready();

    // Enqueue, in place, in GPU memory. REQUIRES: is_ready(), num > 0.
    Result<> broadcast(void* data, std::int64_t num, NcclType type, int root, Stream stream);
    Result<> all_reduce_sum(float* data, std::int64_t num, Stream stream);
    // Gathers each rank's bytes: rank r's become the r-th part of `all`.
    Result<> all_gather(const void* mine, void* all, std::int64_t num_bytes, Stream stream);

    // Begins to leave the group; once is_ready(), destroy() ends it at once.
    // REQUIRES: is_ready(), nothing is enqueued.
    Result<> begin_finalize();
    void destroy();
    // Ends enqueued work, whose data is garbage then, and frees everything. Does not notify the
    // other ranks.
    void abort();

  private:
    NcclCommunicator() = default;
    Result<> accepted(int result, std::string_view call) const;

    void* comm_ = nullptr;
};

}  // namespace pitstop::kernels
