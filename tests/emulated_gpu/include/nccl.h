// Replaces NCCL's header when the emulated GPU's libnccl.so.2 is built and tested: the types as
// NCCL 2.28 lays them out in memory, and only the functions that exist here. Source: NCCL
// documentation, "NCCL API": "Types", "Communicator Creation and Management Functions", "Collective
// Communication Functions", "Group Calls".
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_MAGIC 0xcafebeefu

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };
enum ncclDataType_t {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
};

struct ncclConfig_t {
    std::size_t size = sizeof(ncclConfig_t);
    unsigned magic = NCCL_CONFIG_MAGIC;
    unsigned version = NCCL_VERSION_CODE;
    int blocking = NCCL_CONFIG_UNDEF_INT;
    int cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
    int minCTAs = NCCL_CONFIG_UNDEF_INT;
    int maxCTAs = NCCL_CONFIG_UNDEF_INT;
    const char* netName = nullptr;
    int splitShare = NCCL_CONFIG_UNDEF_INT;
    int trafficClass = NCCL_CONFIG_UNDEF_INT;
    const char* commName = nullptr;
    int collnetEnable = NCCL_CONFIG_UNDEF_INT;
    int CTAPolicy = NCCL_CONFIG_UNDEF_INT;
    int shrinkShare = NCCL_CONFIG_UNDEF_INT;
    int nvlsCTAs = NCCL_CONFIG_UNDEF_INT;
    int nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT;
    int nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT;
};

extern "C" {

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank, ncclConfig_t* config
);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* num_ranks);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);

ncclResult_t ncclBroadcast(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    int root,
    ncclComm_t comm,
    cudaStream_t stream
);
ncclResult_t ncclAllReduce(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    ncclRedOp_t op,
    ncclComm_t comm,
    cudaStream_t stream
);
ncclResult_t ncclAllGather(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    ncclComm_t comm,
    cudaStream_t stream
);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes);
ncclResult_t ncclMemFree(void* data);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);

}  // extern "C"
