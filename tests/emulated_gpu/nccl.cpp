// NCCL as a library that is opened at run time: communicators over processes and threads, and
// collectives in the emulated GPU's streams. Source: NCCL documentation, "NCCL API": "Communicator
// Creation and Management Functions" (what each call waits for, and the errors), "Group Calls",
// "Types"; "Using NCCL": "Fault Tolerance", "User Buffer Registration".
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/communicator.h"
#include "tests/emulated_gpu/errors.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace pitstop::emulator {
namespace {

using CommunicatorPtr = std::shared_ptr<Communicator>;

struct Communicators {
    std::mutex mutex{};
    std::map<ncclComm_t, CommunicatorPtr> by_handle{};
};
Communicators& communicators() {
    static Communicators* const instance = new Communicators;
    return *instance;
}

ncclComm_t add(CommunicatorPtr communicator) {
    const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
    const std::scoped_lock lock(communicators().mutex);
    communicators().by_handle[handle] = std::move(communicator);
    return handle;
}

CommunicatorPtr find(ncclComm_t handle) {
    const std::scoped_lock lock(communicators().mutex);
    const auto found = communicators().by_handle.find(handle);
    return found == communicators().by_handle.end() ? nullptr : found->second;
}

void remove(ncclComm_t handle) {
    const std::scoped_lock lock(communicators().mutex);
    communicators().by_handle.erase(handle);
}

// Calls between ncclGroupStart and ncclGroupEnd take effect with the last End.
struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<CommunicatorPtr> joining{};
    std::vector<CommunicatorPtr> finalizing{};
    std::vector<std::pair<CommunicatorPtr, std::vector<IssuedCollective>>> issued{};
};
thread_local Group group;

ncclResult_t enter(const char* function) {
    if (const std::optional<Fault> fault = fault_at(function, current_gpu())) {
        if (fault->error >= kNcclErrors)
            return say(static_cast<ncclResult_t>(fault->error - kNcclErrors), "an ordered fault");
        const ErrorEntry* const entry = error_entry(fault->error);
        if (entry != nullptr && entry->is_sticky) end_context(entry->number);
        return say(ncclUnhandledCudaError, "an ordered fault of CUDA");
    }
    if (sticky_error() != 0)
        return say(ncclUnhandledCudaError, cudaGetErrorName(cudaGetLastError()));
    return ncclSuccess;
}

// A call that fails in a group fails the group.
ncclResult_t note(ncclResult_t result) {
    const bool is_error = result != ncclSuccess && result != ncclInProgress;
    if (group.depth > 0 && is_error && group.error == ncclSuccess) group.error = result;
    return result;
}

// A communicator must not be used before its last request is done.
ncclResult_t is_ready(Communicator& communicator) {
    const ncclResult_t state = communicator.peek();
    if (state != ncclInProgress) return state;
    return say(
        ncclInvalidArgument,
        "Attempt to use communicator before the previous operation returned ncclSuccess"
    );
}

ncclResult_t read_config(const ncclConfig_t* config, bool& is_blocking) {
    is_blocking = true;
    if (config == nullptr) return ncclSuccess;
    constexpr std::size_t kLeast = offsetof(ncclConfig_t, blocking) + sizeof config->blocking;
    if (config->magic != NCCL_CONFIG_MAGIC || config->size < kLeast)
        return say(ncclInvalidArgument, "the config was not initialized");
    constexpr unsigned kFirstWithTrafficClass = 22500;
    constexpr std::size_t kEarlier = offsetof(ncclConfig_t, splitShare) + sizeof config->splitShare;
    if (config->version < kFirstWithTrafficClass && config->size > kEarlier)
        return say(ncclInvalidArgument, "the config has fields that its version did not have");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        return say(ncclInvalidArgument, "blocking takes 0 and 1");
    is_blocking = config->blocking != 0;
    return ncclSuccess;
}

ncclResult_t join(
    ncclComm_t* handle, int num_ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config
) {
    if (handle == nullptr || num_ranks < 1 || rank < 0 || rank >= num_ranks)
        return say(ncclInvalidArgument, "a rank is from 0 to the number of ranks less one");
    if (num_ranks > Clique::kRanksMax) fail("the emulated NCCL has no room for so many ranks");
    bool is_blocking = true;
    if (const ncclResult_t error = read_config(config, is_blocking); error != ncclSuccess)
        return error;
    auto made = std::make_shared<Communicator>(num_ranks, rank, current_gpu(), is_blocking);
    *handle = add(made);
    ncclResult_t result = made->check_in(id);
    if (group.depth > 0 && result != ncclRemoteError && result != ncclInvalidUsage) {
        group.joining.push_back(std::move(made));
        return ncclSuccess;
    }
    if (result == ncclSuccess) result = made->wait();
    if (result == ncclSuccess || result == ncclInProgress) return result;
    remove(*handle);
    *handle = nullptr;
    return result;
}

// Polls all of them in turn, because each may wait for another communicator of this thread.
void wait_for_all(const std::vector<CommunicatorPtr>& communicators) {
    for (bool is_under_way = true; is_under_way;) {
        is_under_way = false;
        for (const CommunicatorPtr& communicator : communicators) {
            if (communicator->is_blocking() && communicator->poll() == ncclInProgress)
                is_under_way = true;
        }
    }
}

ncclResult_t end_group() {
    Group ended = std::exchange(group, {});
    if (ended.error != ncclSuccess) return ended.error;
    ncclResult_t result = ncclSuccess;
    const auto add_result = [&](ncclResult_t one) {
        const bool is_error = one != ncclSuccess && one != ncclInProgress;
        if (is_error || result == ncclSuccess) result = one;
    };
    for (const CommunicatorPtr& communicator : ended.finalizing) communicator->begin_finalize();
    for (auto& [communicator, issued] : ended.issued)
        add_result(communicator->issue(std::move(issued)));
    for (const auto* const list : {&ended.joining, &ended.finalizing}) {
        wait_for_all(*list);
        for (const CommunicatorPtr& communicator : *list) add_result(communicator->peek());
    }
    return result;
}

ncclResult_t collective(
    const char* function, ncclComm_t handle, IssuedCollective issued, cudaStream_t stream
) {
    const CommunicatorPtr communicator = find(handle);
    if (communicator == nullptr) return note(say(ncclInvalidArgument, "no such communicator"));
    ncclResult_t error = enter(function);
    if (error == ncclSuccess) error = is_ready(*communicator);
    if (error != ncclSuccess) return note(error);
    const Collective& what = issued.collective;
    if (element_bytes(what.type) == 0 || what.op < ncclSum || what.op > ncclAvg || what.root < 0 ||
        what.root >= communicator->num_ranks())
        return note(say(ncclInvalidArgument, "a root, type or operation that there is not"));
    if (what.kind == CollectiveKind::kAllReduce && what.type == ncclFloat16)
        fail("the emulated NCCL does not add float16");
    issued.stream = find_stream(stream, communicator->gpu());
    if (issued.stream == nullptr || issued.stream->gpu != communicator->gpu())
        return note(say(ncclUnhandledCudaError, "the stream is not one of the communicator's GPU"));
    if (what.num == 0) return ncclSuccess;
    if (group.depth == 0) return communicator->issue({std::move(issued)});
    for (auto& [other, list] : group.issued) {
        if (other != communicator) continue;
        list.push_back(std::move(issued));
        return ncclSuccess;
    }
    group.issued.push_back({communicator, {std::move(issued)}});
    return ncclSuccess;
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

#define PITSTOP_ENTER_NCCL() \
    if (const ncclResult_t entered = enter(__func__); entered != ncclSuccess) return note(entered)

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return ncclInvalidArgument;
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error";
        case ncclSystemError:
            return "unhandled system error";
        case ncclInternalError:
            return "internal error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_said().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    PITSTOP_ENTER_NCCL();
    if (id == nullptr) return note(ncclInvalidArgument);
    *id = Clique::create();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank) {
    PITSTOP_ENTER_NCCL();
    return note(join(comm, num_ranks, id, rank, nullptr));
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank, ncclConfig_t* config
) {
    PITSTOP_ENTER_NCCL();
    return note(join(comm, num_ranks, id, rank, config));
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr) return note(ncclInvalidArgument);
    PITSTOP_ENTER_NCCL();
    if (const ncclResult_t error = is_ready(*communicator); error != ncclSuccess)
        return note(error);
    if (communicator->state() != CommunicatorState::kReady)
        return note(say(ncclInvalidUsage, "the communicator was finalized before"));
    if (group.depth > 0) {
        group.finalizing.push_back(communicator);
        return ncclSuccess;
    }
    communicator->begin_finalize();
    return communicator->is_blocking() ? note(communicator->wait()) : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr) return note(ncclInvalidArgument);
    PITSTOP_ENTER_NCCL();
    remove(comm);
    if (group.depth > 0) {
        group.finalizing.push_back(communicator);
        return ncclSuccess;
    }
    communicator->begin_finalize();
    return note(communicator->wait());
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr) return ncclInvalidArgument;
    communicator->abort();
    remove(comm);
    static_cast<void>(fault_at(__func__, communicator->gpu()));  // counts the call at its end
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || error == nullptr) return ncclInvalidArgument;
    *error = communicator->poll();
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* num_ranks) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || num_ranks == nullptr) return ncclInvalidArgument;
    *num_ranks = communicator->num_ranks();
    return is_ready(*communicator);
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || device == nullptr) return ncclInvalidArgument;
    *device = communicator->gpu();
    return is_ready(*communicator);
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || rank == nullptr) return ncclInvalidArgument;
    *rank = communicator->rank();
    return is_ready(*communicator);
}

ncclResult_t ncclBroadcast(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    int root,
    ncclComm_t comm,
    cudaStream_t stream
) {
    const Collective what{
        .kind = CollectiveKind::kBroadcast, .type = type, .root = root, .num = num};
    return collective(__func__, comm, {.collective = what, .from = from, .to = to}, stream);
}

ncclResult_t ncclAllReduce(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    ncclRedOp_t op,
    ncclComm_t comm,
    cudaStream_t stream
) {
    const Collective what{.kind = CollectiveKind::kAllReduce, .type = type, .op = op, .num = num};
    return collective(__func__, comm, {.collective = what, .from = from, .to = to}, stream);
}

ncclResult_t ncclAllGather(
    const void* from,
    void* to,
    std::size_t num,
    ncclDataType_t type,
    ncclComm_t comm,
    cudaStream_t stream
) {
    const Collective what{.kind = CollectiveKind::kAllGather, .type = type, .num = num};
    return collective(__func__, comm, {.collective = what, .from = from, .to = to}, stream);
}

ncclResult_t ncclGroupStart() {
    ++group.depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group.depth == 0) return say(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group.depth > 0 ? ncclSuccess : end_group();
}

// Allocates by the virtual-memory API, as NCCL does: cudaIpc handles cannot open such memory.
ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
    PITSTOP_ENTER_NCCL();
    if (data == nullptr) return ncclInvalidArgument;
    *data = nullptr;
    const std::size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    if (rounded == 0) return ncclSuccess;
    std::shared_ptr<Physical> physical = create_physical(current_gpu(), rounded);
    std::byte* const begin = physical == nullptr ? nullptr : reserve_range(rounded);
    if (begin == nullptr) return say(ncclUnhandledCudaError, "out of memory");
    const int gpus[] = {current_gpu()};
    if (!map_range(begin, rounded, std::move(physical)) || !set_range_access(begin, rounded, gpus))
        fail("a new range cannot be mapped");
    *data = begin;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
    PITSTOP_ENTER_NCCL();
    const std::optional<Allocation> found = find_memory(data);
    if (!found || found->kind != MemoryKind::kRange || found->begin != data)
        return ncclInvalidArgument;
    return unmap_range(found->begin, found->bytes) && free_range(found->begin, found->bytes)
               ? ncclSuccess
               : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t, void** handle) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || handle == nullptr) return ncclInvalidArgument;
    PITSTOP_ENTER_NCCL();
    *handle = data;
    communicator->registered.insert(data);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
    const CommunicatorPtr communicator = find(comm);
    if (communicator == nullptr || communicator->registered.erase(handle) == 0)
        return ncclInvalidArgument;
    return ncclSuccess;
}

}  // extern "C"
