// Exchanges data between the ranks of a replica, each on a GPU of its own, within a step: sums of
// activations, records of rows of logits, and parts of logits. Kernels on each rank's stream move
// the data through memory that every rank has mapped (peer access); the host waits for nothing.
//
//   all_reduce      data[i] = sum over the ranks of their data[i], in fp32 and in the order of
//                   ranks: the same bits on every rank, whatever the size, the path and the batch
//                   (P6)
//   gather_columns  whole[i, r C + c] = part of rank r [i, c]; only on rank 0
//   all_gather      all[r, i] = byte i of rank r's; on every rank
//
// Every rank enqueues the same operations in the same order with the same sizes. An operation of
// more than a chunk is several launches. In each, a block copies its part of this rank's data to
// this rank's memory. The block announces the copy to the same block of every other rank, waits for
// their announcements, and then reads their copies. Chunks alternate between two buffers. A rank
// that has reached launch n + 1 is done with launch n, so launch n + 2 can use the buffer of n
// without a second wait.
//
//   one shot   each rank reads everything of all ranks: one wait
//   two shots  each rank sums its own part of the data, announces it, and reads the others' sums:
//              two waits, but 2 / size of the bytes; with more than two ranks, from
//              kOneShotBytesMax on. The choice changes no bit
//
// An announcement is one word, with the launch, the operation and its size. The number of the
// launch is kept in the device's memory, so that a captured graph can run again and again.
//
// A block that waits for longer than `limit` gives up: it writes which rank was missing to
// *failure, and this launch and all later ones of this rank return at once, with undefined results.
// The host checks for a failure after it has waited for the stream.
//
// Bound by latency up to about 256 KiB, then by links: size - 1 times the data in, or twice.
// Source: the one-shot and two-shot kernels of TensorRT-LLM and vLLM (custom_all_reduce.cuh).
#pragma once

#include "kernels/tensor.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace pitstop {
struct Error;  // base/result.h, whose fmt nvcc cannot compile
}

namespace pitstop::kernels {

inline constexpr int kExchangeRanksMax = 16;
inline constexpr int kExchangeBlocksMax = 32;
inline constexpr std::int64_t kOneShotBytesMax = std::int64_t{256} << 10;
// The size of a buffer: a step of 1024 tokens of 2048 activations is one launch.
inline constexpr std::int64_t kExchangeChunkBytes = std::int64_t{8} << 20;

// The operation of a launch. The lower bits of a word have the operation and the number of floats
// or words.
enum class ExchangeOp : std::uint64_t { kAllReduce = 1, kGatherColumns = 2, kAllGather = 3 };
inline constexpr int kExchangeNumBits = 22;
inline constexpr int kExchangeTagBits = kExchangeNumBits + 2;
[[nodiscard]] constexpr std::uint64_t exchange_tag(ExchangeOp op, std::int64_t num) {
    return static_cast<std::uint64_t>(op) << kExchangeNumBits | static_cast<std::uint64_t>(num);
}

// The state of a rank's exchanges, in page-locked memory, written by the device.
struct ExchangeFailure {
    enum class Kind : std::uint64_t {
        kNone = 0,
        kMissing,    // `rank` has not arrived within the limit
        kOutOfStep,  // `rank` is at another operation, or at one of another size
    };
    std::uint64_t kind = 0;  // a Kind; written last
    std::uint64_t rank = 0;
    std::uint64_t launch = 0;
    std::uint64_t tag = 0;        // the operation on this rank
    std::uint64_t other_tag = 0;  // the operation on `rank`
};

// One rank's view of the exchange; a kernel gets a copy as its parameter.
struct Exchange {
    int rank = 0;
    int size = 1;
    int num_blocks = 1;  // at most, in a launch; the same on every rank
    std::int64_t chunk_bytes = kExchangeChunkBytes;
    std::uint64_t limit_ns = 0;
    // The memory of each rank, at its address on this rank's device: exchange_bytes(), 256-byte
    // aligned, all zeros except the chunks before any rank's first launch.
    std::array<std::byte*, kExchangeRanksMax> memories{};
    ExchangeFailure* failure = nullptr;  // on the host, page-locked; initially zeros
};

// REQUIRES: chunk_bytes is a multiple of 256.
[[nodiscard]] std::int64_t exchange_bytes(std::int64_t chunk_bytes);
// Returns how many of the exchange_bytes(), from the first, must be zeros at the start.
[[nodiscard]] std::int64_t exchange_header_bytes();

struct AllReduceArgs {
    const Exchange& exchange;
    float* data = nullptr;  // 16-byte aligned
    std::int64_t num = 0;   // a multiple of 4
    Stream stream{};
};
void all_reduce_cuda(const AllReduceArgs& args);

struct GatherColumnsArgs {
    const Exchange& exchange;
    View2<const float> part{};  // [n, C], rows contiguous
    View2<float> whole{};       // [n, V] on rank 0, C * size >= V; not used on other ranks
    Stream stream{};
};
void gather_columns_cuda(const GatherColumnsArgs& args);

struct AllGatherArgs {
    const Exchange& exchange;
    const std::byte* mine = nullptr;  // [num_bytes], 16-byte aligned
    std::byte* all = nullptr;         // [size, num_bytes], 16-byte aligned
    std::int64_t num_bytes = 0;       // of each rank, a multiple of 16
    Stream stream{};
};
void all_gather_cuda(const AllGatherArgs& args);

// Describes a failure in words: which rank was awaited, and where. kInternal if ranks are out of
// step, kDeadlineExceeded otherwise. REQUIRES: failure.kind is not kNone.
[[nodiscard]] Error error_of(const ExchangeFailure& failure, std::uint64_t limit_ns);

}  // namespace pitstop::kernels
