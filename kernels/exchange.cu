#include "kernels/exchange.h"

#include "kernels/device/system_scope.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kAlignment = 256;  // bytes

// A word contains the number of the launch, and the tag of its operation.
constexpr std::uint64_t kTagMask = (std::uint64_t{1} << kExchangeTagBits) - 1;

constexpr int kWaits = 2;  // the meetings of a launch with two shots

// Precedes the chunks in each rank's memory.
struct Header {
    // By wait, buffer, block and rank: the latest word of that rank's block.
    std::uint64_t words[kWaits][2][kExchangeBlocksMax][kExchangeRanksMax];
    // The members below are for this rank alone.
    std::uint64_t num_launches;   // launches that have ended
    std::uint64_t failed_launch;  // 0: none
    // number of the launch in which a block gave up
    std::uint64_t has_given_up[kExchangeBlocksMax];
    std::uint32_t num_ended;  // blocks of the current launch
    std::uint32_t num_failures;
};
constexpr std::int64_t kHeaderBytes = (sizeof(Header) + kAlignment - 1) / kAlignment * kAlignment;

__device__ Header* header_of(const Exchange& exchange, int rank) {
    return reinterpret_cast<Header*>(exchange.memories[rank]);
}
// Returns a rank's buffer for this launch.
__device__ float* chunk_of(const Exchange& exchange, int rank, std::uint64_t launch) {
    std::byte* const chunks = exchange.memories[rank] + kHeaderBytes;
    return reinterpret_cast<float*>(chunks + (launch & 1) * exchange.chunk_bytes);
}
__device__ std::uint64_t read_again(const std::uint64_t& word) {
    return *static_cast<const volatile std::uint64_t*>(&word);
}

// One block's progress through a launch. All of its threads make the same calls.
class Meeting {
  public:
    __device__ Meeting(const Exchange& exchange, std::uint64_t tag)
        : exchange_(exchange),
          mine_(*header_of(exchange, exchange.rank)),
          launch_(read_again(mine_.num_launches) + 1),
          word_(launch_ << kExchangeTagBits | tag) {}

    [[nodiscard]] __device__ std::uint64_t launch() const { return launch_; }
    // Returns whether an earlier launch gave up: then no later launch waits for other ranks. A
    // failure in this launch takes effect with the next one, so that all threads of a block agree.
    [[nodiscard]] __device__ bool is_over() const {
        const std::uint64_t failed = read_again(mine_.failed_launch);
        return failed != 0 && failed != launch_;
    }

    // Announces to the same block of every rank that this block has reached the meeting, and waits
    // for them.
    // Returns false if it gave up.
    [[nodiscard]] __device__ bool meet(int wait) {
        __syncthreads();  // orders the block's writes before the word
        const int rank = static_cast<int>(threadIdx.x);
        if (rank < exchange_.size) {
            Header& theirs = *header_of(exchange_, rank);
            store_release_system(
                &theirs.words[wait][launch_ & 1][blockIdx.x][exchange_.rank], word_
            );
            wait_for(rank, &mine_.words[wait][launch_ & 1][blockIdx.x][rank]);
        }
        __syncthreads();
        return read_again(mine_.has_given_up[blockIdx.x]) == 0;
    }

    // The last block to arrive ends the launch.
    __device__ void end() {
        __syncthreads();
        if (threadIdx.x != 0) return;
        __threadfence();
        if (atomicAdd(&mine_.num_ended, 1u) != gridDim.x - 1) return;
        mine_.num_ended = 0;
        mine_.num_launches = launch_;
    }

  private:
    __device__ void wait_for(int rank, const std::uint64_t* word) {
        const std::uint64_t begin = global_nanoseconds();
        while (true) {
            const std::uint64_t seen = load_acquire_system(word);
            if (seen == word_) return;
            if (seen >> kExchangeTagBits == launch_)
                return give_up(ExchangeFailure::Kind::kOutOfStep, rank, seen);
            if (global_nanoseconds() - begin > exchange_.limit_ns)
                return give_up(ExchangeFailure::Kind::kMissing, rank, 0);
            stand_by();
        }
    }

    __device__ void give_up(ExchangeFailure::Kind kind, int rank, std::uint64_t seen) {
        mine_.has_given_up[blockIdx.x] = 1;
        mine_.failed_launch = launch_;
        if (atomicAdd(&mine_.num_failures, 1u) != 0) return;  // only the first failure is reported
        volatile ExchangeFailure& failure = *exchange_.failure;
        failure.rank = static_cast<std::uint64_t>(rank);
        failure.launch = launch_;
        failure.tag = word_ & kTagMask;
        failure.other_tag = seen & kTagMask;
        store_release_system(&exchange_.failure->kind, static_cast<std::uint64_t>(kind));
    }

    const Exchange& exchange_;
    Header& mine_;
    std::uint64_t launch_;
    std::uint64_t word_;
};

__device__ float4 add(float4 a, float4 b) {
    return make_float4(
        __fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)
    );
}

// Sums in rank order.
__device__ float4 sum_at(const Exchange& exchange, std::uint64_t launch, std::int64_t i) {
    float4 sum = reinterpret_cast<const float4*>(chunk_of(exchange, 0, launch))[i];
    for (int rank = 1; rank < exchange.size; ++rank)
        sum = add(sum, reinterpret_cast<const float4*>(chunk_of(exchange, rank, launch))[i]);
    return sum;
}

// The block's share of `num` packs: `begin` is this thread's first pack, `end` the block's end.
struct Share {
    __device__ explicit Share(std::int64_t num) {
        const std::int64_t of_block = (num + gridDim.x - 1) / gridDim.x;
        begin = blockIdx.x * of_block + threadIdx.x;
        end = min(num, (blockIdx.x + std::int64_t{1}) * of_block);
    }
    // Calls f for each of this thread's packs in the part that begins at `first` and ends at or
    // before `limit`.
    template <class F>
    __device__ void each(std::int64_t first, std::int64_t limit, const F& f) const {
        const std::int64_t last = min(first + end, limit);
        for (std::int64_t i = first + begin; i < last; i += kThreads) f(i);
    }
    // Copies this thread's packs. `to` and `from` could overlap, so the compiler does not move a
    // load above a store. Therefore several loads are written before the first store.
    __device__ void copy(float4* to, const float4* from, std::int64_t first, std::int64_t limit)
        const {
        constexpr int kBatch = 4;
        const std::int64_t last = min(first + end, limit);
        std::int64_t i = first + begin;
        for (; i + (kBatch - 1) * kThreads < last; i += kBatch * kThreads) {
            float4 packs[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) packs[j] = from[i + j * kThreads];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) to[i + j * kThreads] = packs[j];
        }
        for (; i < last; i += kThreads) to[i] = from[i];
    }
    std::int64_t begin, end;
};

// grid [at most num_blocks], block [kThreads]; a block owns the same packs of every rank. Bytes per
// pack: 16 read from each rank, over the links except for this rank's own, and 32 written here.
// Latency-bound if small.
__global__ void __launch_bounds__(kThreads, 1) one_shot_kernel(
    const __grid_constant__ Exchange exchange,
    float4* data,  // [num_packs]
    std::int64_t num_packs,
    std::uint64_t tag
) {
    Meeting meeting(exchange, tag);
    if (meeting.is_over()) return;
    const Share share(num_packs);
    auto* const own =
        reinterpret_cast<float4*>(chunk_of(exchange, exchange.rank, meeting.launch()));
    share.copy(own, data, 0, num_packs);
    if (meeting.meet(0)) {
        share.each(0, num_packs, [&](std::int64_t i) {
            data[i] = sum_at(exchange, meeting.launch(), i);
        });
    }
    meeting.end();
}

// grid [at most num_blocks], block [kThreads]; rank r sums part r of the packs, and a block owns
// the same packs of each part. The sums of a part overwrite this rank's own packs of it, which no
// other rank reads.
__global__ void __launch_bounds__(kThreads, 1) two_shot_kernel(
    const __grid_constant__ Exchange exchange,
    float4* data,  // [num_packs]
    std::int64_t num_packs,
    std::uint64_t tag
) {
    Meeting meeting(exchange, tag);
    if (meeting.is_over()) return;
    const std::int64_t part = (num_packs + exchange.size - 1) / exchange.size;
    const Share share(part);
    auto* const own =
        reinterpret_cast<float4*>(chunk_of(exchange, exchange.rank, meeting.launch()));
    for (int rank = 0; rank < exchange.size; ++rank) share.copy(own, data, rank * part, num_packs);
    bool is_met = meeting.meet(0);
    if (is_met) {
        share.each(exchange.rank * part, num_packs, [&](std::int64_t i) {
            own[i] = sum_at(exchange, meeting.launch(), i);
        });
        is_met = meeting.meet(1);
    }
    for (int rank = 0; is_met && rank < exchange.size; ++rank) {
        const auto* const theirs =
            reinterpret_cast<const float4*>(chunk_of(exchange, rank, meeting.launch()));
        share.copy(data, theirs, rank * part, num_packs);
    }
    meeting.end();
}

// grid [at most num_blocks], block [kThreads]; a block owns the same floats of every rank's part.
// Rank 0 reads 4 bytes per float over the links and writes 4.
__global__ void __launch_bounds__(kThreads) gather_columns_kernel(
    const __grid_constant__ Exchange exchange,
    const float* part,  // [n, C], the whole part
    std::int64_t C,
    std::int64_t begin,  // the floats of `part` in this launch
    std::int64_t num,
    float* whole,  // [n, V], of rank 0
    std::int64_t V,
    std::int64_t whole_stride,
    std::uint64_t tag
) {
    Meeting meeting(exchange, tag);
    if (meeting.is_over()) return;
    const Share share(num);
    if (exchange.rank != 0) {
        float* const own = chunk_of(exchange, exchange.rank, meeting.launch());
        for (std::int64_t i = share.begin; i < share.end; i += kThreads) own[i] = part[begin + i];
    }
    const bool is_met = meeting.meet(0);
    for (int rank = 0; is_met && exchange.rank == 0 && rank < exchange.size; ++rank) {
        const float* const from =
            rank == 0 ? part + begin : chunk_of(exchange, rank, meeting.launch());
        for (std::int64_t i = share.begin; i < share.end; i += kThreads) {
            const std::int64_t row = (begin + i) / C;
            const std::int64_t column = rank * C + (begin + i) % C;
            if (column < V) whole[row * whole_stride + column] = from[i];
        }
    }
    meeting.end();
}

// grid [at most num_blocks], block [kThreads]; a block owns the same packs of every rank. 16
// bytes per pack and rank in, over the links except for this rank's own, and 16 out.
// Latency-bound: some KiB.
__global__ void __launch_bounds__(kThreads) all_gather_kernel(
    const __grid_constant__ Exchange exchange,
    const float4* mine,  // [num_packs]
    std::int64_t num_packs,
    float4* all,  // [size, all_stride], of which this launch writes num_packs per rank
    std::int64_t all_stride,
    std::uint64_t tag
) {
    Meeting meeting(exchange, tag);
    if (meeting.is_over()) return;
    const Share share(num_packs);
    auto* const own =
        reinterpret_cast<float4*>(chunk_of(exchange, exchange.rank, meeting.launch()));
    share.copy(own, mine, 0, num_packs);
    const bool is_met = meeting.meet(0);
    for (int rank = 0; is_met && rank < exchange.size; ++rank) {
        const auto* const theirs =
            reinterpret_cast<const float4*>(chunk_of(exchange, rank, meeting.launch()));
        float4* const to = all + rank * all_stride;
        share.copy(to, theirs, 0, num_packs);
    }
    meeting.end();
}

void check(const Exchange& exchange) {
    CHECK(exchange.size >= 1 && exchange.size <= kExchangeRanksMax);
    CHECK(exchange.rank >= 0 && exchange.rank < exchange.size);
    CHECK(exchange.num_blocks >= 1 && exchange.num_blocks <= kExchangeBlocksMax);
    CHECK(exchange.chunk_bytes > 0 && exchange.chunk_bytes % kAlignment == 0);
    CHECK(exchange.chunk_bytes / 4 < std::int64_t{1} << kExchangeNumBits);
    CHECK(exchange.failure != nullptr);
    for (int rank = 0; rank < exchange.size; ++rank)
        CHECK(is_aligned(exchange.memories[static_cast<std::size_t>(rank)], kAlignment));
}

Launch shape_of(const Exchange& exchange, std::int64_t num_items, Stream stream) {
    const std::int64_t num_blocks =
        std::clamp<std::int64_t>(ceil_div(num_items, kThreads), 1, exchange.num_blocks);
    return {
        .grid = dim3(narrow<unsigned>(num_blocks)),
        .block = dim3(kThreads),
        .stream = stream,
        .is_cooperative = true};
}

}  // namespace

std::int64_t exchange_header_bytes() { return kHeaderBytes; }
std::int64_t exchange_bytes(std::int64_t chunk_bytes) { return kHeaderBytes + 2 * chunk_bytes; }

void all_reduce_cuda(const AllReduceArgs& args) {
    const Exchange& exchange = args.exchange;
    check(exchange);
    CHECK(args.num >= 0 && args.num % 4 == 0 && is_aligned(args.data, 16));
    const std::int64_t num_max = exchange.chunk_bytes / 4;
    for (std::int64_t begin = 0; begin < args.num; begin += num_max) {
        const std::int64_t num = std::min(num_max, args.num - begin);
        auto* const data = reinterpret_cast<float4*>(args.data + begin);
        const std::uint64_t tag = exchange_tag(ExchangeOp::kAllReduce, num);
        if (exchange.size <= 2 || num * 4 <= kOneShotBytesMax) {
            launch<one_shot_kernel>(
                shape_of(exchange, num / 4, args.stream), exchange, data, num / 4, tag
            );
        } else {
            const std::int64_t part = ceil_div(num / 4, exchange.size);
            launch<two_shot_kernel>(
                shape_of(exchange, part, args.stream), exchange, data, num / 4, tag
            );
        }
    }
}

void gather_columns_cuda(const GatherColumnsArgs& args) {
    const Exchange& exchange = args.exchange;
    check(exchange);
    const std::int64_t C = args.part.cols;
    CHECK(args.part.stride == C);
    if (exchange.rank == 0)
        CHECK(args.whole.rows == args.part.rows && C * exchange.size >= args.whole.cols);
    const std::int64_t num_max = exchange.chunk_bytes / 4;
    for (std::int64_t begin = 0; begin < args.part.rows * C; begin += num_max) {
        const std::int64_t num = std::min(num_max, args.part.rows * C - begin);
        launch<gather_columns_kernel>(
            shape_of(exchange, ceil_div(num, 4), args.stream),
            exchange,
            args.part.data,
            C,
            begin,
            num,
            args.whole.data,
            args.whole.cols,
            args.whole.stride,
            exchange_tag(ExchangeOp::kGatherColumns, num)
        );
    }
}

void all_gather_cuda(const AllGatherArgs& args) {
    const Exchange& exchange = args.exchange;
    check(exchange);
    constexpr std::int64_t kPack = sizeof(float4);
    CHECK(args.num_bytes >= 0 && args.num_bytes % kPack == 0);
    CHECK(is_aligned(args.mine, kPack) && is_aligned(args.all, kPack));
    const std::int64_t num_packs = args.num_bytes / kPack;
    const std::int64_t num_max = exchange.chunk_bytes / kPack;
    for (std::int64_t begin = 0; begin < num_packs; begin += num_max) {
        const std::int64_t num = std::min(num_max, num_packs - begin);
        launch<all_gather_kernel>(
            shape_of(exchange, num, args.stream),
            exchange,
            reinterpret_cast<const float4*>(args.mine) + begin,
            num,
            reinterpret_cast<float4*>(args.all) + begin,
            num_packs,
            exchange_tag(ExchangeOp::kAllGather, num * 4)
        );
    }
}

}  // namespace pitstop::kernels
