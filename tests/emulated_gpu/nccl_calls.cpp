#include "tests/emulated_gpu/nccl_calls.h"

#include "kernels/runtime/cuda_libraries.h"
#include "tests/emulated_gpu/cuda_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <dlfcn.h>
#include <stdexcept>
#include <thread>

namespace pitstop::emulator {
namespace {

using namespace std::chrono_literals;

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(name);
}

NcclLibrary open() {
    void* const library = dlopen(kernels::find_nccl().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    NcclLibrary found{};
    find(library, "ncclGetVersion", found.get_version);
    find(library, "ncclGetErrorString", found.get_error_string);
    find(library, "ncclGetLastError", found.get_last_error);
    find(library, "ncclGetUniqueId", found.get_unique_id);
    find(library, "ncclCommInitRank", found.init_rank);
    find(library, "ncclCommInitRankConfig", found.init_rank_config);
    find(library, "ncclCommFinalize", found.finalize);
    find(library, "ncclCommDestroy", found.destroy);
    find(library, "ncclCommAbort", found.abort);
    find(library, "ncclCommGetAsyncError", found.get_async_error);
    find(library, "ncclCommCount", found.count);
    find(library, "ncclCommCuDevice", found.cu_device);
    find(library, "ncclCommUserRank", found.user_rank);
    find(library, "ncclBroadcast", found.broadcast);
    find(library, "ncclAllReduce", found.all_reduce);
    find(library, "ncclAllGather", found.all_gather);
    find(library, "ncclGroupStart", found.group_start);
    find(library, "ncclGroupEnd", found.group_end);
    find(library, "ncclMemAlloc", found.mem_alloc);
    find(library, "ncclMemFree", found.mem_free);
    find(library, "ncclCommRegister", found.comm_register);
    find(library, "ncclCommDeregister", found.comm_deregister);
    return found;
}

}  // namespace

const NcclLibrary& nccl() {
    static const NcclLibrary library = open();
    return library;
}

std::string to_hex(const ncclUniqueId& id) {
    std::string text;
    char digits[3];
    for (const char byte : id.internal) {
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

ncclUniqueId id_from(const std::string& hex) {
    ncclUniqueId id{};
    for (std::size_t i = 0; i < sizeof id.internal; ++i)
        id.internal[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    return id;
}

ncclResult_t async_error(ncclComm_t comm) {
    ncclResult_t error = ncclInternalError;
    EXPECT_EQ(nccl().get_async_error(comm, &error), ncclSuccess);
    return error;
}

bool becomes(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(200us);
    }
    return true;
}

ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t error = ncclInProgress;
    (void)becomes([&] { return (error = async_error(comm)) != ncclInProgress; });
    return error;
}

ncclConfig_t non_blocking() {
    ncclConfig_t config;
    config.blocking = 0;
    return config;
}

Pair::Pair() {
    ncclUniqueId id{};
    EXPECT_NCCL(ncclSuccess, nccl().get_unique_id(&id));
    EXPECT_NCCL(ncclSuccess, nccl().group_start());
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_CUDA(cudaSuccess, cudaSetDevice(rank));
        EXPECT_NCCL(ncclSuccess, nccl().init_rank(&comms[rank], 2, id, rank));
    }
    EXPECT_NCCL(ncclSuccess, nccl().group_end());
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
}

void abort_both(const Pair& pair) {
    for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclSuccess, nccl().abort(pair.comms[rank]));
}

}  // namespace pitstop::emulator
