// The part of NCCL's binary interface that is used here: the library is opened at run time
// (nccl.h), and a build needs no header of it. Order and sizes are those of nccl.h since NCCL 2.18,
// to which later versions only add.
//
// Source: NCCL documentation, "NCCL API", "Types"; nccl.h, ncclConfig_t: a library reads `size`
//         bytes of a struct, and uses defaults for fields that `version` did not have.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kNcclVersionMin = 21800;  // the version of NcclConfig

enum class NcclResult : int {
    kSuccess = 0,
    kUnhandledCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
    kInProgress = 7,
};

struct NcclUniqueId {
    char internal[128];
};

struct NcclConfig {
    static constexpr int kUndefined = INT_MIN;
    // Without the padding at the end: later versions have a field there.
    std::size_t size = offsetof(NcclConfig, split_share) + sizeof(int);
    unsigned magic = 0xcafebeefu;
    unsigned version = kNcclVersionMin;
    int blocking = kUndefined;
    int cga_cluster_size = kUndefined;
    int min_ctas = kUndefined;
    int max_ctas = kUndefined;
    const char* net_name = nullptr;
    int split_share = kUndefined;
};

using NcclComm = struct NcclCommOpaque*;

// The functions, by their names without "nccl".
struct NcclFunctions {
    NcclResult (*get_version)(int* version) = nullptr;
    const char* (*get_error_string)(NcclResult result) = nullptr;
    const char* (*get_last_error)(NcclComm comm) = nullptr;
    NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
    NcclResult (*comm_init_rank_config
    )(NcclComm* comm, int num_ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
    NcclResult (*comm_finalize)(NcclComm comm) = nullptr;
    NcclResult (*comm_destroy)(NcclComm comm) = nullptr;
    NcclResult (*comm_abort)(NcclComm comm) = nullptr;
    NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* error) = nullptr;
    NcclResult (*broadcast
    )(const void* from, void* to, std::size_t num, int type, int root, NcclComm comm, void* stream
    ) = nullptr;
    NcclResult (*all_reduce
    )(const void* from,
      void* to,
      std::size_t num,
      int type,
      int operation,
      NcclComm comm,
      void* stream) = nullptr;
    NcclResult (*all_gather
    )(const void* from, void* to, std::size_t num, int type, NcclComm comm, void* stream) = nullptr;
};

}  // namespace pitstop::kernels
