#include "kernels/runtime/nccl.h"

#include "base/check.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/cuda_libraries.h"
#include "kernels/runtime/nccl_abi.h"

#include <cstring>
#include <dlfcn.h>

namespace pitstop::kernels {
namespace {

struct Loaded {
    NcclLibrary library{};
    NcclFunctions functions{};
};

bool find_functions(void* library, NcclFunctions& found) {
    return find_function(library, "ncclGetVersion", found.get_version) &&
           find_function(library, "ncclGetErrorString", found.get_error_string) &&
           find_function(library, "ncclGetLastError", found.get_last_error) &&
           find_function(library, "ncclGetUniqueId", found.get_unique_id) &&
           find_function(library, "ncclCommInitRankConfig", found.comm_init_rank_config) &&
           find_function(library, "ncclCommFinalize", found.comm_finalize) &&
           find_function(library, "ncclCommDestroy", found.comm_destroy) &&
           find_function(library, "ncclCommAbort", found.comm_abort) &&
           find_function(library, "ncclCommGetAsyncError", found.comm_get_async_error) &&
           find_function(library, "ncclBroadcast", found.broadcast) &&
           find_function(library, "ncclAllReduce", found.all_reduce) &&
           find_function(library, "ncclAllGather", found.all_gather);
}

Result<Loaded> open_library() {
    Loaded loaded;
    loaded.library.path = find_nccl();
    if (loaded.library.path.empty()) {
        return make_error(
            ErrorCode::kNotFound,
            "libnccl.so.2 was not found; put it beside the executable, in its ../lib, on "
            "LD_LIBRARY_PATH, under CUDA_HOME/lib64 or, with pip, where python3 finds nvidia-nccl"
        );
    }
    const std::string& path = loaded.library.path;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const why = dlerror();
        return make_error(
            ErrorCode::kUnavailable, "NCCL cannot be opened: {}", why != nullptr ? why : path
        );
    }
    const bool has_all = find_functions(library, loaded.functions);
    int& version = loaded.library.version;
    if (loaded.functions.get_version == nullptr ||
        loaded.functions.get_version(&version) != NcclResult::kSuccess) {
        return make_error(ErrorCode::kUnsupported, "{} does not report its NCCL version", path);
    }
    if (version < kNcclVersionMin || !has_all) {
        return make_error(
            ErrorCode::kUnsupported,
            "{} is NCCL {}; 2.18 and newer are accepted",
            path,
            loaded.library.version_text()
        );
    }
    return loaded;
}

const Result<Loaded>& loaded() {
    static const Result<Loaded> instance = open_library();
    return instance;
}

const NcclFunctions& nccl() {
    CHECK(loaded().has_value());
    return loaded()->functions;
}

NcclComm as_comm(void* comm) { return static_cast<NcclComm>(comm); }

ErrorCode code_of(NcclResult result) {
    switch (result) {
        case NcclResult::kInvalidArgument:
            return ErrorCode::kInvalidArgument;
        case NcclResult::kInvalidUsage:
            return ErrorCode::kFailedPrecondition;
        case NcclResult::kInternalError:
            return ErrorCode::kInternal;
        default:
            return ErrorCode::kUnavailable;
    }
}

Error refusal(NcclResult result, std::string_view call, NcclComm comm) {
    const char* const more = nccl().get_last_error(comm);
    return make_error(
        code_of(result),
        "NCCL {}: {}: {}{}{}",
        loaded()->library.version_text(),
        call,
        nccl().get_error_string(result),
        more != nullptr && *more != '\0' ? ": " : "",
        more != nullptr ? more : ""
    );
}

}  // namespace

std::string NcclLibrary::version_text() const {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<NcclLibrary> load_nccl() {
    if (!loaded()) return loaded().error();
    return loaded()->library;
}

std::int64_t bytes_of(NcclType type) {
    switch (type) {
        case NcclType::kBytes:
            return 1;
        case NcclType::kF16:
        case NcclType::kBf16:
            return 2;
        case NcclType::kI32:
        case NcclType::kF32:
            return 4;
        case NcclType::kI64:
        case NcclType::kF64:
            return 8;
    }
    CHECK(false);
}

Result<std::string> make_nccl_id() {
    if (compute_capability() == 0)
        return make_error(
            ErrorCode::kUnsupported, "no GPU is open in this process, and NCCL needs one"
        );
    if (!loaded()) return loaded().error();
    enter_cuda_device();
    NcclUniqueId id{};
    const NcclResult result = nccl().get_unique_id(&id);
    if (result != NcclResult::kSuccess) return refusal(result, "ncclGetUniqueId", nullptr);
    return std::string(id.internal, sizeof id.internal);
}

Result<NcclCommunicator> NcclCommunicator::begin(const Args& args) {
    CHECK(args.id.size() == kNcclIdBytes);
    if (compute_capability() == 0)
        return make_error(
            ErrorCode::kUnsupported, "no GPU is open in this process, and NCCL needs one"
        );
    if (!loaded()) return loaded().error();
    enter_cuda_device();
    NcclUniqueId id{};
    static_assert(sizeof id.internal == kNcclIdBytes);
    std::memcpy(id.internal, args.id.data(), kNcclIdBytes);
    NcclConfig config;
    config.blocking = 0;
    if (args.max_ctas > 0) config.max_ctas = args.max_ctas;
    NcclComm comm = nullptr;
    const NcclResult result =
        nccl().comm_init_rank_config(&comm, args.num_ranks, id, args.rank, &config);
    NcclCommunicator made;
    made.comm_ = comm;
    RETURN_IF_ERROR(made.accepted(static_cast<int>(result), "ncclCommInitRankConfig"));
    return made;
}

Result<> NcclCommunicator::accepted(int code, std::string_view call) const {
    const auto result = static_cast<NcclResult>(code);
    if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return Ok{};
    return refusal(result, call, as_comm(comm_));
}

Result<bool> NcclCommunicator::is_ready() {
    CHECK(comm_ != nullptr);
    auto state = NcclResult::kInternalError;
    const NcclResult asked = nccl().comm_get_async_error(as_comm(comm_), &state);
    RETURN_IF_ERROR(accepted(static_cast<int>(asked), "ncclCommGetAsyncError"));
    RETURN_IF_ERROR(accepted(static_cast<int>(state), "the group"));
    return state == NcclResult::kSuccess;
}

Result<> NcclCommunicator::broadcast(
    void* data, std::int64_t num, NcclType type, int root, Stream stream
) {
    CHECK(comm_ != nullptr && num > 0);
    enter_cuda_device();
    const NcclResult result = nccl().broadcast(
        data,
        data,
        static_cast<std::size_t>(num),
        static_cast<int>(type),
        root,
        as_comm(comm_),
        stream.handle
    );
    return accepted(static_cast<int>(result), "ncclBroadcast");
}

Result<> NcclCommunicator::all_reduce_sum(float* data, std::int64_t num, Stream stream) {
    constexpr int kSum = 0;
    CHECK(comm_ != nullptr && num > 0);
    enter_cuda_device();
    const NcclResult result = nccl().all_reduce(
        data,
        data,
        static_cast<std::size_t>(num),
        static_cast<int>(NcclType::kF32),
        kSum,
        as_comm(comm_),
        stream.handle
    );
    return accepted(static_cast<int>(result), "ncclAllReduce");
}

Result<> NcclCommunicator::all_gather(
    const void* mine, void* all, std::int64_t num_bytes, Stream stream
) {
    CHECK(comm_ != nullptr && num_bytes > 0);
    enter_cuda_device();
    const NcclResult result = nccl().all_gather(
        mine,
        all,
        static_cast<std::size_t>(num_bytes),
        static_cast<int>(NcclType::kBytes),
        as_comm(comm_),
        stream.handle
    );
    return accepted(static_cast<int>(result), "ncclAllGather");
}

Result<> NcclCommunicator::begin_finalize() {
    CHECK(comm_ != nullptr);
    enter_cuda_device();
    return accepted(static_cast<int>(nccl().comm_finalize(as_comm(comm_))), "ncclCommFinalize");
}

void NcclCommunicator::destroy() {
    CHECK(comm_ != nullptr);
    enter_cuda_device();
    // The result is ignored: nothing could be done about a failure.
    static_cast<void>(nccl().comm_destroy(as_comm(std::exchange(comm_, nullptr))));
}

void NcclCommunicator::abort() {
    if (comm_ == nullptr) return;
    enter_cuda_device();
    static_cast<void>(nccl().comm_abort(as_comm(std::exchange(comm_, nullptr))));
}

}  // namespace pitstop::kernels
