// Wraps NCCL on the opened GPU (cuda_device.h): the library, opened at run time where
// cuda_libraries.h finds it, and communicators that never wait. Every call may leave something in
// progress; its end is asked for, never waited for, so that whoever calls has a deadline of its own
// (P5) and abort()s what does not come. No CUDA and no NCCL type is named.
//
// A failing call is an Error, not the end of the process: what NCCL fails by is a peer. Where the
// GPU itself is broken, the next CUDA call ends the process.
//
// Source: NCCL documentation, "Creating a communicator with options", "Fault Tolerance",
//         ncclCommInitRankConfig, ncclCommGetAsyncError, ncclCommAbort.
#pragma once

#include "base/result.h"
#include "kernels/tensor.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

struct NcclLibrary {
    std::string path{};
    int version = 0;                                 // as NCCL codes it: 22809
    [[nodiscard]] std::string version_text() const;  // "2.28.9"
};
// Opens the process's NCCL, once; a failure is the same every time. Peers must have the same
// version, to the patch. Errors: kNotFound (none was found); kUnavailable (the loader does not take
// it); kUnsupported (older than 2.18, or a symbol is missing).
[[nodiscard]] Result<NcclLibrary> load_nccl();

inline constexpr std::size_t kNcclIdBytes = 128;

// Makes a new group's unique id, kNcclIdBytes long, for all its ranks: they meet at this process,
// which stays until they joined. Errors: load_nccl()'s, kUnsupported (no GPU is open), and NCCL's.
[[nodiscard]] Result<std::string> make_nccl_id();

// Names the elements of a broadcast, by NCCL's numbers.
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

// This is one rank of a group of NCCL's.
//
// Owns:   the communicator; a destructor aborts it.
// Thread: one at a time.
// Errors: kUnavailable (a peer is gone, a network fails), kFailedPrecondition (NCCL calls it
//         invalid usage: two ranks on one GPU, another number of ranks), kInvalidArgument,
//         kInternal. After one, only abort() is of use.
class NcclCommunicator {
  public:
    struct Args {
        std::string_view id{};  // kNcclIdBytes, the same for all ranks
        int num_ranks = 0;
        int rank = 0;
        // A collective has so many thread blocks, which spin until the peers come, so many
        // multiprocessors are lost to steps meanwhile, and no more. 0: as many as NCCL takes.
        int max_ctas = 0;
    };
    // Begins to join; the others need not be there. Errors beside the class's: load_nccl()'s,
    // kUnsupported (no GPU is open).
    [[nodiscard]] static Result<NcclCommunicator> begin(const Args& args);
    NcclCommunicator(NcclCommunicator&& other) noexcept
        : comm_(std::exchange(other.comm_, nullptr)) {}
    NcclCommunicator& operator=(NcclCommunicator&& other) noexcept {
        std::swap(comm_, other.comm_);
        return *this;
    }
    ~NcclCommunicator() { abort(); }

    // Tells whether the latest call is through: joined, or enqueued on its stream. Nothing else may
    // be called before.
    [[nodiscard]] Result<bool> is_ready();

    // These enqueue, in place, in GPU memory. REQUIRES: is_ready(), num > 0.
    Result<> broadcast(void* data, std::int64_t num, NcclType type, int root, Stream stream);
    Result<> all_reduce_sum(float* data, std::int64_t num, Stream stream);
    // Does the same with rank r's bytes, which become the r-th part of `all`.
    Result<> all_gather(const void* mine, void* all, std::int64_t num_bytes, Stream stream);

    // Takes leave of the others: begins, and once is_ready(), destroy() ends it at once.
    // REQUIRES: is_ready(), nothing is enqueued.
    Result<> begin_finalize();
    void destroy();
    // Ends what is enqueued, whose data is garbage then, and frees everything. Says nothing to the
    // others.
    void abort();

  private:
    NcclCommunicator() = default;
    Result<> accepted(int result, std::string_view call) const;

    void* comm_ = nullptr;
};

}  // namespace pitstop::kernels
