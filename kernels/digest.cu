#include "kernels/digest.h"

#include "kernels/device/fast_div.h"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kChunkBytes = 16;  // two words: a thread's unit
constexpr int kLoadsInFlight = 4;
constexpr int kRounds = 2;  // rounds of kLoadsInFlight chunks: 32 KiB per block
constexpr int kChunksPerBlock = kThreads * kLoadsInFlight * kRounds;
// Launches are short enough that indices fit 31 bits. A step's kernels do not wait for a whole
// launch, because its blocks are short and its stream has lower priority.
constexpr std::int64_t kBytesPerLaunchMax = std::int64_t{1} << 30;

struct Chunk {
    std::uint64_t low;
    std::uint64_t high;
};

// Loads `num` (1 to 16) bytes as two words, zeros after them.
__device__ Chunk load_bytes(const std::uint8_t* from, int num) {
    Chunk chunk{0, 0};
    for (int i = 0; i < num; ++i) {
        const std::uint64_t byte = from[i];
        if (i < 8) {
            chunk.low |= byte << (8 * i);
        } else {
            chunk.high |= byte << (8 * (i - 8));
        }
    }
    return chunk;
}

__device__ Chunk as_chunk(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return {a | std::uint64_t{b} << 32, c | std::uint64_t{d} << 32};
}

// Loads 16 bytes at any address, with aligned 4-byte words; reads up to 3 bytes on either side.
__device__ Chunk load_shifted(const std::uint8_t* from) {
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    const auto* const words = reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
    const auto shift = static_cast<std::uint32_t>(address & 3) * 8;
    std::uint32_t w[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = words[i];
    w[4] = shift == 0 ? 0 : words[4];
    return as_chunk(
        __funnelshift_r(w[0], w[1], shift),
        __funnelshift_r(w[1], w[2], shift),
        __funnelshift_r(w[2], w[3], shift),
        __funnelshift_r(w[3], w[4], shift)
    );
}

struct Lanes {
    std::uint64_t lane0 = 0;
    std::uint64_t lane1 = 0;
    std::uint64_t num_nonfinite = 0;

    __device__ void add(std::uint64_t word, std::uint64_t index) {
        const std::uint64_t marks = digest::nonfinite_bits(word);
        // The shift moves the two upper marks of the four to bits next to the lower ones.
        num_nonfinite +=
            static_cast<std::uint32_t>(__popc(static_cast<std::uint32_t>(marks | marks >> 33)));
        const std::uint64_t h = mix64(word + (index + 1) * kDigestStep);
        lane0 += h;
        lane1 += (h >> 32) * (h & 0xffffffffu);
    }
};

// grid [tiles of kChunksPerBlock chunks, or fewer], block [kThreads]; a block processes tiles in
// turn, and a thread owns every kThreads-th chunk of a tile. Memory-bound: 1 byte in per byte;
// about 52 instructions per chunk, 3.3 per byte; 32 of the 52 are integer multiplies and adds at 64
// lanes per clock: enough for 8 TB/s on 132 SMs at 1.83 GHz, nearly twice the memory's rate. The
// count of non-finite numbers adds 14 instructions, 2 of them (popc) at 16 lanes per clock. 16.4 GB
// take 3.8 ms at 4.3 TB/s. Sums of integers: the order in which blocks add theirs does not matter.
template <bool kIsAligned>  // every row starts at 16 bytes
__global__ void __launch_bounds__(kThreads) digest_kernel(
    const std::uint8_t* __restrict__ data,
    std::uint32_t num_chunks,  // rows * chunks_per_row
    FastDiv chunks_per_row,
    std::int64_t row_bytes,
    std::int64_t row_stride_bytes,
    std::uint64_t first_word,
    std::uint64_t words_per_row,  // of the whole tensor
    Digest* __restrict__ sum,
    std::uint64_t* __restrict__ num_nonfinite  // or null
) {
    Lanes lanes;
    const std::uint32_t num_tiles = (num_chunks + kChunksPerBlock - 1) / kChunksPerBlock;
    const std::uint32_t num_steps =
        num_tiles > blockIdx.x ? ((num_tiles - blockIdx.x - 1) / gridDim.x + 1) * kRounds : 0;
    for (std::uint32_t step = 0; step < num_steps; ++step) {
        const std::uint32_t tile = blockIdx.x + step / kRounds * gridDim.x;
        const std::uint32_t round = step % kRounds;
        Chunk chunks[kLoadsInFlight];
        std::uint64_t index[kLoadsInFlight];  // position of the chunk's first word
        int num_words[kLoadsInFlight];
#pragma unroll
        for (int j = 0; j < kLoadsInFlight; ++j) {
            const std::uint32_t c =
                tile * static_cast<std::uint32_t>(kChunksPerBlock) +
                (round * kLoadsInFlight + static_cast<std::uint32_t>(j)) * kThreads + threadIdx.x;
            num_words[j] = 0;
            if (c >= num_chunks) continue;
            const std::uint32_t row = chunks_per_row.quotient(c);
            const std::uint32_t col = c - row * chunks_per_row.divisor();
            const std::int64_t begin = std::int64_t{col} * kChunkBytes;
            const std::uint8_t* const from = data + row * row_stride_bytes + begin;
            const std::int64_t left = row_bytes - begin;
            index[j] = first_word + row * words_per_row + 2 * std::uint64_t{col};
            num_words[j] = left > 8 ? 2 : 1;
            if (left < kChunkBytes) {
                chunks[j] = load_bytes(from, static_cast<int>(left));
            } else if constexpr (kIsAligned) {
                const uint4 pack = *reinterpret_cast<const uint4*>(from);
                chunks[j] = as_chunk(pack.x, pack.y, pack.z, pack.w);
            } else if (col == 0 || left < kChunkBytes + 4) {
                // load_shifted() would read up to 3 bytes outside the row
                chunks[j] = load_bytes(from, kChunkBytes);
            } else {
                chunks[j] = load_shifted(from);
            }
        }
#pragma unroll
        for (int j = 0; j < kLoadsInFlight; ++j) {
            if (num_words[j] >= 1) lanes.add(chunks[j].low, index[j]);
            if (num_words[j] == 2) lanes.add(chunks[j].high, index[j] + 1);
        }
    }
    const std::uint64_t lane0 = block_sum<kThreads>(lanes.lane0);
    const std::uint64_t lane1 = block_sum<kThreads>(lanes.lane1);
    if (threadIdx.x == 0) {
        static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
        atomicAdd(reinterpret_cast<unsigned long long*>(&sum->lane0), lane0);
        atomicAdd(reinterpret_cast<unsigned long long*>(&sum->lane1), lane1);
    }
    if (num_nonfinite == nullptr) return;
    const std::uint64_t num = block_sum<kThreads>(lanes.num_nonfinite);
    if (threadIdx.x == 0 && num != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(num_nonfinite), num);
}

// REQUIRES: rows * row_bytes <= kBytesPerLaunchMax.
void launch_piece(const DigestArgs& args) {
    const std::int64_t chunks_per_row = ceil_div(args.row_bytes, kChunkBytes);
    const std::int64_t num_chunks = args.rows * chunks_per_row;
    CHECK(num_chunks <= FastDiv::kDividendMax - kChunksPerBlock);
    const bool starts_aligned = is_aligned(args.data, kChunkBytes) &&
                                (args.rows == 1 || args.row_stride_bytes % kChunkBytes == 0);
    const auto run = [&]<bool kIsAligned>() {
        launch<digest_kernel<kIsAligned>>(
            {.grid = dim3(capped_blocks(ceil_div(num_chunks, kChunksPerBlock), args.blocks_max)),
             .block = dim3(kThreads),
             .stream = args.stream},
            static_cast<const std::uint8_t*>(args.data),
            narrow<std::uint32_t>(num_chunks),
            FastDiv(chunks_per_row),
            args.row_bytes,
            args.row_stride_bytes,
            args.first_word,
            args.words_per_row,
            args.sum,
            args.num_nonfinite
        );
    };
    starts_aligned ? run.operator()<true>() : run.operator()<false>();
}

}  // namespace

void digest_cuda(const DigestArgs& args) {
    check(args);
    if (args.rows == 0 || args.row_bytes == 0) return;
    DigestArgs left = args;
    // Rows that follow each other in memory and in words are joined into one row.
    if (left.row_stride_bytes == left.row_bytes && left.row_bytes % 8 == 0 &&
        left.words_per_row == digest_words(left.row_bytes)) {
        left.row_bytes *= left.rows;
        left.words_per_row = digest_words(left.row_bytes);
        left.rows = 1;
    }
    const auto* const data = static_cast<const std::byte*>(left.data);
    if (left.rows == 1) {
        for (std::int64_t begin = 0; begin < left.row_bytes; begin += kBytesPerLaunchMax) {
            DigestArgs piece = left;
            piece.data = data + begin;
            piece.row_bytes = std::min(kBytesPerLaunchMax, left.row_bytes - begin);
            piece.first_word = left.first_word + static_cast<std::uint64_t>(begin / 8);
            launch_piece(piece);
        }
        return;
    }
    // A launch has at least one chunk per row, so that rows of a few bytes do not overflow the
    // count of chunks.
    const std::int64_t rows_per_launch = std::max<std::int64_t>(
        1, kBytesPerLaunchMax / (ceil_div(left.row_bytes, kChunkBytes) * kChunkBytes)
    );
    for (std::int64_t begin = 0; begin < left.rows; begin += rows_per_launch) {
        DigestArgs piece = left;
        piece.data = data + begin * left.row_stride_bytes;
        piece.rows = std::min(rows_per_launch, left.rows - begin);
        piece.first_word = left.first_word + static_cast<std::uint64_t>(begin) * left.words_per_row;
        launch_piece(piece);
    }
}

}  // namespace pitstop::kernels
