// Ranks that die, never arrive, or should not exist; calls that do not block. Source: NCCL
// documentation, "Creating a Communicator", "Error handling and communicator abort", "Fault
// Tolerance", "Communicator Creation and Management Functions".
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/emulated_gpu/nccl_calls.h"

#include <cstdlib>
#include <string>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 100;
constexpr int kTimes = 200;  // after this many polls the test assumes that nothing arrives

ncclUniqueId make_id() {
    ncclUniqueId id{};
    EXPECT_NCCL(ncclSuccess, nccl().get_unique_id(&id));
    return id;
}

// Returns when the ranks have added their words.
cudaError_t add_up(const DeviceWords& words, ncclComm_t comm) {
    const cudaStream_t stream = make_stream();
    std::uint32_t* const data = words.data();
    EXPECT_NCCL(
        ncclSuccess, nccl().all_reduce(data, data, kNum, ncclUint32, ncclSum, comm, stream)
    );
    return cudaStreamSynchronize(stream);
}

// Rank 1 on the GPU that the test names; returns its communicator's final state.
int join_and_leave() {
    if (cudaSetDevice(std::atoi(std::getenv("PITSTOP_TEST_GPU"))) != cudaSuccess) return 100;
    ncclComm_t comm = nullptr;
    const ncclUniqueId id = id_from(std::getenv("PITSTOP_TEST_ID"));
    if (const ncclResult_t result = nccl().init_rank(&comm, 2, id, 1); result != ncclSuccess)
        return result;
    const DeviceWords words(kNum);
    (void)add_up(words, comm);
    return 0;
}

int fail_in_order() {
    const Pair pair;
    const DeviceWords words(kNum);
    const ncclResult_t result = nccl().all_reduce(
        words.data(), words.data(), kNum, ncclUint32, ncclSum, pair.comms[0], make_stream()
    );
    return result == ncclSystemError ? 0 : 1;
}

const bool defined =
    define_part("nccl_leave", join_and_leave) && define_part("nccl_fail", fail_in_order);

TEST(NcclErrors, ADeadRankIsAnErrorThatPollsFindAndAnAbortEndsTheWait) {
    ASSERT_TRUE(defined);
    const ncclUniqueId id = make_id();
    const int process =
        start_part("nccl_leave", {{"PITSTOP_TEST_ID", to_hex(id)}, {"PITSTOP_TEST_GPU", "1"}});
    const cudaStream_t stream = make_stream();
    const DeviceWords words(kNum);
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclSuccess, nccl().init_rank(&comm, 2, id, 0));
    EXPECT_CUDA(cudaSuccess, add_up(words, comm));
    EXPECT_EQ(wait_part(process), 0);
    EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(words.data(), 0, words.bytes(), stream));
    (void)nccl().broadcast(words.data(), words.data(), kNum, ncclUint32, 1, comm, stream);
    EXPECT_TRUE(becomes([&] { return async_error(comm) == ncclRemoteError; }));
    EXPECT_NCCL(
        ncclRemoteError,
        nccl().broadcast(words.data(), words.data(), kNum, ncclUint32, 1, comm, stream)
    );
    for (int i = 0; i < kTimes; ++i) EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(stream));
    EXPECT_NCCL(ncclSuccess, nccl().abort(comm));
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 0xffffffffu));
}

TEST(NcclErrors, ARankThatNeverComesIsWaitedForUntilAnAbort) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclInProgress, nccl().init_rank_config(&comm, 2, make_id(), 0, &config));
    for (int i = 0; i < kTimes; ++i) EXPECT_NCCL(ncclInProgress, async_error(comm));
    const DeviceWords words(kNum);
    EXPECT_NCCL(
        ncclInvalidArgument,
        nccl().broadcast(words.data(), words.data(), kNum, ncclUint32, 0, comm, make_stream())
    );
    EXPECT_NCCL(ncclSuccess, nccl().abort(comm));
    EXPECT_NCCL(ncclInvalidArgument, nccl().abort(comm));
}

TEST(NcclErrors, ARankThatStaysAwayFromACollectiveIsNoError) {
    const Pair pair;
    const cudaStream_t stream = make_stream();
    const DeviceWords words(kNum);
    EXPECT_NCCL(
        ncclSuccess,
        nccl().all_reduce(
            words.data(), words.data(), kNum, ncclUint32, ncclSum, pair.comms[0], stream
        )
    );
    for (int i = 0; i < kTimes; ++i) {
        EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(stream));
        EXPECT_NCCL(ncclSuccess, async_error(pair.comms[0]));
    }
    abort_both(pair);
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
}

TEST(NcclErrors, RanksAtDifferentCollectivesWaitForEachOther) {
    const Pair pair;
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(1));
    const DeviceWords others(kNum);
    const cudaStream_t other = make_stream();
    EXPECT_NCCL(
        ncclSuccess,
        nccl().all_reduce(
            words.data(), words.data(), kNum, ncclUint32, ncclSum, pair.comms[0], stream
        )
    );
    EXPECT_NCCL(
        ncclSuccess,
        nccl().all_reduce(
            others.data(), others.data(), kNum - 1, ncclUint32, ncclSum, pair.comms[1], other
        )
    );
    for (int i = 0; i < kTimes; ++i) {
        EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(stream));
        EXPECT_CUDA(cudaErrorNotReady, cudaStreamQuery(other));
    }
    abort_both(pair);
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
}

TEST(NcclErrors, TwoRanksOnOneGpuAreRefused) {
    ncclUniqueId id = make_id();
    const int process =
        start_part("nccl_leave", {{"PITSTOP_TEST_ID", to_hex(id)}, {"PITSTOP_TEST_GPU", "0"}});
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclInvalidUsage, nccl().init_rank(&comm, 2, id, 0));
    EXPECT_NE(
        std::string(nccl().get_last_error(nullptr)).find("Duplicate GPU detected : rank 0"),
        std::string::npos
    );
    EXPECT_EQ(comm, nullptr);
    EXPECT_EQ(wait_part(process), ncclInvalidUsage);
}

TEST(NcclErrors, ANonBlockingCallMayPostItsWorkWithALaterPoll) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    (void)nccl().init_rank_config(&comm, 1, make_id(), 0, &config);
    EXPECT_NCCL(ncclSuccess, settle(comm));
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    for (int i = 0; i < 10; ++i) {
        const ncclResult_t result =
            nccl().broadcast(words.data(), words.data(), kNum, ncclUint32, 0, comm, stream);
        if (result != ncclInProgress) {
            EXPECT_NCCL(ncclSuccess, result);
            continue;
        }
        EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(stream));  // the communicator is empty
        int rank = -1;
        EXPECT_NCCL(ncclInvalidArgument, nccl().user_rank(comm, &rank));
        EXPECT_NCCL(ncclSuccess, settle(comm));
    }
    EXPECT_NCCL(ncclSuccess, nccl().finalize(comm));
    EXPECT_NCCL(ncclSuccess, settle(comm));
    EXPECT_NCCL(ncclSuccess, nccl().destroy(comm));
}

TEST(NcclErrors, ArgumentsAreChecked) {
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclInvalidArgument, nccl().init_rank(&comm, 2, make_id(), 2));
    EXPECT_NCCL(ncclInvalidArgument, nccl().init_rank(nullptr, 2, make_id(), 0));
    ncclConfig_t config;
    config.magic = 0;
    EXPECT_NCCL(ncclInvalidArgument, nccl().init_rank_config(&comm, 1, make_id(), 0, &config));
    EXPECT_NCCL(ncclRemoteError, nccl().init_rank(&comm, 1, ncclUniqueId{}, 0));
    EXPECT_NCCL(ncclInvalidUsage, nccl().group_end());
    const Pair pair;
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    std::uint32_t* const data = words.data();
    EXPECT_NCCL(
        ncclInvalidArgument,
        nccl().broadcast(data, data, kNum, ncclUint32, 2, pair.comms[0], stream)
    );
    EXPECT_NCCL(
        ncclInvalidArgument,
        nccl().broadcast(
            data, data, kNum, static_cast<ncclDataType_t>(99), 0, pair.comms[0], stream
        )
    );
    EXPECT_NCCL(
        ncclUnhandledCudaError,
        nccl().broadcast(data, data, kNum, ncclUint32, 0, pair.comms[1], stream)
    );
    abort_both(pair);
}

TEST(NcclErrors, CallsFailInOrder) {
    EXPECT_EQ(
        run_part("nccl_fail", {{"PITSTOP_EMULATED_FAULTS", "ncclAllReduce:1=ncclSystemError"}}), 0
    );
}

TEST(NcclErrors, MemoryOfNcclHasNoHandleForOtherProcesses) {
    void* data = nullptr;
    EXPECT_NCCL(ncclSuccess, nccl().mem_alloc(&data, 1));
    cudaIpcMemHandle_t handle{};
    EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, data));
    const Pair pair;
    void* registered = nullptr;
    EXPECT_NCCL(ncclSuccess, nccl().comm_register(pair.comms[0], data, 1, &registered));
    EXPECT_NCCL(ncclSuccess, nccl().comm_deregister(pair.comms[0], registered));
    EXPECT_NCCL(ncclInvalidArgument, nccl().comm_deregister(pair.comms[0], registered));
    abort_both(pair);
    EXPECT_NCCL(ncclSuccess, nccl().mem_free(data));
    EXPECT_NCCL(ncclInvalidArgument, nccl().mem_free(data));
}

}  // namespace
}  // namespace pitstop::emulator
