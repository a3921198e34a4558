// Shared by the tests of the emulated NCCL: the library, opened as its users do, ids for other
// processes, and waits with a deadline.
#pragma once

#include <nccl.h>

#include <functional>
#include <map>
#include <string>

namespace pitstop::emulator {

// The functions of the libnccl.so.2 that find_nccl() finds.
struct NcclLibrary {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetErrorString) get_error_string;
    decltype(&ncclGetLastError) get_last_error;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRank) init_rank;
    decltype(&ncclCommInitRankConfig) init_rank_config;
    decltype(&ncclCommFinalize) finalize;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommGetAsyncError) get_async_error;
    decltype(&ncclCommCount) count;
    decltype(&ncclCommCuDevice) cu_device;
    decltype(&ncclCommUserRank) user_rank;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclMemAlloc) mem_alloc;
    decltype(&ncclMemFree) mem_free;
    decltype(&ncclCommRegister) comm_register;
    decltype(&ncclCommDeregister) comm_deregister;
};
[[nodiscard]] const NcclLibrary& nccl();

#define EXPECT_NCCL(result, call) \
    EXPECT_STREQ(nccl().get_error_string(call), nccl().get_error_string(result))

[[nodiscard]] std::string to_hex(const ncclUniqueId& id);
[[nodiscard]] ncclUniqueId id_from(const std::string& hex);

[[nodiscard]] ncclResult_t async_error(ncclComm_t comm);
// Polls until nothing is in progress; ncclInProgress: the deadline passed.
[[nodiscard]] ncclResult_t settle(ncclComm_t comm);
// False: the condition did not hold within half a minute.
[[nodiscard]] bool becomes(const std::function<bool()>& condition);

[[nodiscard]] ncclConfig_t non_blocking();

// Two ranks of this thread, on GPUs 0 and 1.
struct Pair {
    Pair();
    ncclComm_t comms[2] = {};
};
// Leaves with GPU 0 current.
void abort_both(const Pair& pair);

}  // namespace pitstop::emulator
