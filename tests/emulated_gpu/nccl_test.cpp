// Collectives between processes and within one, in the order of their streams. Source: NCCL
// documentation, "Collective Operations", "CUDA Stream Semantics", "Group Calls", "Using NCCL with
// CUDA Graphs".
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/emulated_gpu/nccl_calls.h"
#include "tests/emulated_gpu/settings.h"

#include <cstdlib>
#include <string>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 40'000;  // three of the pieces in which data is exchanged

// A GPU with two arrays and a stream.
struct Side {
    explicit Side(int gpu_in) : gpu(gpu_in) {
        EXPECT_CUDA(cudaSuccess, cudaSetDevice(gpu));
        stream = make_stream();
        EXPECT_CUDA(cudaSuccess, cudaMalloc(&words, kNum * sizeof *words));
        EXPECT_CUDA(cudaSuccess, cudaMalloc(&gathered, 2 * kNum * sizeof *words));
    }
    ~Side() {
        cudaSetDevice(gpu);
        cudaFree(words);
        cudaFree(gathered);
        cudaSetDevice(0);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    int gpu;
    cudaStream_t stream = nullptr;
    std::uint32_t* words = nullptr;
    std::uint32_t* gathered = nullptr;
};

// Rank 0 broadcasts ones. Each rank doubles them (2 x + 1) once or twice, all reduce the sums, each
// doubles once or twice again, and all gather. Nothing waits in between.
void enqueue_all(const Side& side, ncclComm_t comm, int rank) {
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(side.gpu));
    EXPECT_CUDA(
        cudaSuccess, cudaMemsetAsync(side.words, 0, kNum * sizeof *side.words, side.stream)
    );
    for (int i = rank; i < 1; ++i)
        EXPECT_CUDA(cudaSuccess, launch_double(side.words, kNum, side.stream));
    EXPECT_NCCL(
        ncclSuccess,
        nccl().broadcast(side.words, side.words, kNum, ncclUint32, 0, comm, side.stream)
    );
    for (int i = 0; i <= rank; ++i)
        EXPECT_CUDA(cudaSuccess, launch_double(side.words, kNum, side.stream));
    EXPECT_NCCL(
        ncclSuccess,
        nccl().all_reduce(side.words, side.words, kNum, ncclUint32, ncclSum, comm, side.stream)
    );
    for (int i = 0; i <= rank; ++i)
        EXPECT_CUDA(cudaSuccess, launch_double(side.words, kNum, side.stream));
    EXPECT_NCCL(
        ncclSuccess,
        nccl().all_gather(side.words, side.gathered, kNum, ncclUint32, comm, side.stream)
    );
}

// 1 after the broadcast, 3 and 7 in the ranks, 10 after the reduction, 21 and 43 gathered.
bool is_gathered(const Side& side) {
    std::vector<std::uint32_t> words(2 * kNum);
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(side.stream));
    EXPECT_CUDA(
        cudaSuccess,
        cudaMemcpy(
            words.data(), side.gathered, words.size() * sizeof words[0], cudaMemcpyDeviceToHost
        )
    );
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i] != (i < kNum ? 21u : 43u)) return false;
    }
    return true;
}

int be_rank_1() {
    const Side side(1);
    ncclComm_t comm = nullptr;
    const ncclUniqueId id = id_from(std::getenv("PITSTOP_TEST_ID"));
    if (nccl().init_rank(&comm, 2, id, 1) != ncclSuccess) return 1;
    enqueue_all(side, comm, 1);
    if (!is_gathered(side)) return 2;
    return nccl().destroy(comm) == ncclSuccess ? 0 : 3;
}

const bool defined = define_part("nccl_rank_1", be_rank_1);

std::size_t free_bytes_of(int gpu) {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(gpu));
    EXPECT_CUDA(cudaSuccess, cudaMemGetInfo(&free, &total));
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
    return free;
}

// NCCL's documentation gives no amount; bench/gpu_probe.cpp measures it on a device.
TEST(Nccl, ACommunicatorTakesMemoryOfItsGpuUntilItEnds) {
    const auto own = static_cast<std::size_t>(settings().nccl_bytes);
    ASSERT_GT(own, 0u);
    const std::size_t before[] = {free_bytes_of(0), free_bytes_of(1)};
    const Pair pair;
    for (int gpu = 0; gpu < 2; ++gpu) EXPECT_EQ(before[gpu] - free_bytes_of(gpu), own);
    abort_both(pair);
    for (int gpu = 0; gpu < 2; ++gpu) EXPECT_EQ(free_bytes_of(gpu), before[gpu]);
    void* rest = nullptr;
    ASSERT_OK(cudaMalloc(&rest, before[0]));
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclSuccess, nccl().get_unique_id(&id));
    EXPECT_NCCL(ncclUnhandledCudaError, nccl().init_rank(&comm, 1, id, 0));
    ASSERT_OK(cudaFree(rest));
    EXPECT_EQ(free_bytes_of(0), before[0]);
}

TEST(Nccl, ProcessesExchangeInTheOrderOfTheirStreams) {
    ASSERT_TRUE(defined);
    ncclUniqueId id{};
    EXPECT_NCCL(ncclSuccess, nccl().get_unique_id(&id));
    const int process = start_part("nccl_rank_1", {{"PITSTOP_TEST_ID", to_hex(id)}});
    const Side side(0);
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclSuccess, nccl().init_rank(&comm, 2, id, 0));
    int value = -1;
    EXPECT_NCCL(ncclSuccess, nccl().count(comm, &value));
    EXPECT_EQ(value, 2);
    EXPECT_NCCL(ncclSuccess, nccl().user_rank(comm, &value));
    EXPECT_EQ(value, 0);
    enqueue_all(side, comm, 0);
    EXPECT_TRUE(is_gathered(side));
    EXPECT_NCCL(ncclSuccess, nccl().destroy(comm));
    EXPECT_EQ(wait_part(process), 0);
}

TEST(Nccl, AThreadOfTwoGpusGroupsItsCalls) {
    const Pair pair;
    const Side sides[] = {Side(0), Side(1)};
    EXPECT_NCCL(ncclSuccess, nccl().group_start());
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_CUDA(cudaSuccess, cudaSetDevice(rank));
        EXPECT_CUDA(
            cudaSuccess, cudaMemsetAsync(sides[rank].words, 1 + rank, kNum * 4, sides[rank].stream)
        );
        EXPECT_NCCL(
            ncclSuccess,
            nccl().all_reduce(
                sides[rank].words,
                sides[rank].gathered,
                kNum,
                ncclUint32,
                ncclMax,
                pair.comms[rank],
                sides[rank].stream
            )
        );
    }
    EXPECT_NCCL(ncclSuccess, nccl().group_end());
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(sides[rank].stream));
        std::uint32_t word = 0;
        EXPECT_CUDA(
            cudaSuccess,
            cudaMemcpy(&word, sides[rank].gathered + kNum - 1, 4, cudaMemcpyDeviceToHost)
        );
        EXPECT_EQ(word, 0x02020202u);
    }
    EXPECT_NCCL(ncclSuccess, nccl().group_start());
    for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclSuccess, nccl().destroy(pair.comms[rank]));
    EXPECT_NCCL(ncclSuccess, nccl().group_end());
}

TEST(Nccl, StreamsOfAGroupWaitForEachOther) {
    const Pair pair;
    const Side sides[] = {Side(0), Side(1)};
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
    const cudaStream_t other = make_stream();
    const DeviceWords flag(kNum);
    // The fill in `other` is done before the first collective, which is in another stream.
    EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(sides[0].words, 0, kNum * 4, other));
    EXPECT_CUDA(cudaSuccess, launch_double(sides[0].words, kNum, other));
    EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(flag.data(), 0, flag.bytes(), other));
    EXPECT_NCCL(ncclSuccess, nccl().group_start());
    for (int rank = 0; rank < 2; ++rank) {
        const auto* const from = sides[0].words;
        EXPECT_NCCL(
            ncclSuccess,
            nccl().broadcast(
                from,
                sides[rank].gathered,
                kNum,
                ncclUint32,
                0,
                pair.comms[rank],
                sides[rank].stream
            )
        );
        void* const to = rank == 0 ? flag.data() : sides[1].words;
        EXPECT_NCCL(
            ncclSuccess,
            nccl().broadcast(
                to, to, kNum, ncclUint32, 0, pair.comms[rank], rank == 0 ? other : sides[1].stream
            )
        );
    }
    EXPECT_NCCL(ncclSuccess, nccl().group_end());
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(other));
    std::uint32_t word = 0;
    EXPECT_CUDA(
        cudaSuccess, cudaMemcpy(&word, sides[0].gathered + kNum - 1, 4, cudaMemcpyDeviceToHost)
    );
    EXPECT_EQ(word, 1u);
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(sides[1].stream));
    abort_both(pair);
}

// ncclBfloat16: 1 + 2^-8 rounds to 1; all ranks have the same bits.
TEST(Nccl, SumsOfBf16AreRoundedAndAlikeEverywhere) {
    const Pair pair;
    const Side sides[] = {Side(0), Side(1)};
    const std::uint32_t values[] = {0x3f803f80u, 0x3b803b80u};  // 1, 2^-8
    EXPECT_NCCL(ncclSuccess, nccl().group_start());
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_CUDA(
            cudaSuccess,
            cudaMemcpyAsync(
                sides[rank].words, &values[rank], 4, cudaMemcpyHostToDevice, sides[rank].stream
            )
        );
        EXPECT_NCCL(
            ncclSuccess,
            nccl().all_reduce(
                sides[rank].words,
                sides[rank].words,
                2,
                ncclBfloat16,
                ncclSum,
                pair.comms[rank],
                sides[rank].stream
            )
        );
    }
    EXPECT_NCCL(ncclSuccess, nccl().group_end());
    for (const Side& side : sides) {
        std::uint32_t word = 0;
        EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(side.stream));
        EXPECT_CUDA(cudaSuccess, cudaMemcpy(&word, side.words, 4, cudaMemcpyDeviceToHost));
        EXPECT_EQ(word, 0x3f803f80u);  // a tie, rounded to even
    }
    abort_both(pair);
}

TEST(Nccl, ACollectiveIsCapturedAndReplayed) {
    const Pair pair;
    const Side sides[] = {Side(0), Side(1)};
    cudaGraphExec_t executables[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_CUDA(cudaSuccess, cudaSetDevice(rank));
        const Side& side = sides[rank];
        EXPECT_CUDA(cudaSuccess, cudaMemset(side.words, 0, kNum * 4));
        cudaGraph_t graph = nullptr;
        EXPECT_CUDA(
            cudaSuccess, cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal)
        );
        EXPECT_CUDA(cudaSuccess, launch_double(side.words, kNum, side.stream));
        EXPECT_NCCL(
            ncclSuccess,
            nccl().all_reduce(
                side.words, side.words, kNum, ncclUint32, ncclSum, pair.comms[rank], side.stream
            )
        );
        EXPECT_CUDA(cudaSuccess, cudaStreamEndCapture(side.stream, &graph));
        EXPECT_CUDA(cudaSuccess, cudaGraphInstantiate(&executables[rank], graph, 0));
        EXPECT_CUDA(cudaSuccess, cudaGraphDestroy(graph));
        EXPECT_CUDA(cudaSuccess, cudaDeviceSynchronize());
    }
    for (int replay = 0; replay < 2; ++replay) {
        for (int rank = 0; rank < 2; ++rank)
            EXPECT_CUDA(cudaSuccess, cudaGraphLaunch(executables[rank], sides[rank].stream));
    }
    for (const Side& side : sides) {
        std::uint32_t word = 0;
        EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(side.stream));
        EXPECT_CUDA(
            cudaSuccess, cudaMemcpy(&word, side.words + kNum - 1, 4, cudaMemcpyDeviceToHost)
        );
        EXPECT_EQ(word, 10u);  // 1 + 1, then 5 + 5
    }
    abort_both(pair);
}

}  // namespace
}  // namespace pitstop::emulator
