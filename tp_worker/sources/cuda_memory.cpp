#include "tp_worker/sources/cuda_memory.h"

#include "tp_worker/sources/peer_descriptors.h"

#include <cstring>
#include <limits>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kTagBytes = 2;  // version, type
constexpr std::string_view kHelp =
    "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False in the sender avoids such descriptors";

int version_of(std::string_view handle) {
    return handle.empty() ? 0 : static_cast<unsigned char>(handle[0]);
}

bool is_known_version(std::string_view handle) {
    return version_of(handle) >= 1 && version_of(handle) <= 3;
}

template <class T>
T read_at(std::string_view bytes, std::size_t at) {
    T value{};
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

Error with_help(Error error) {
    error.message += kHelp;
    return error;
}

Result<kernels::DeviceImport> open_run(std::string_view handle, pid_t owner) {
    ASSIGN_OR_RETURN(const SegmentRun run, read_segment_run(handle));
    // The sender may not lend another process's descriptors.
    if (run.pid != owner) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the expandable segments belong to process {} and the reference counters to process "
            "{}; both must belong to one",
            run.pid,
            owner
        );
    }
    const Result<PeerDescriptors> peer = PeerDescriptors::open(run.pid);
    if (!peer) return with_help(peer.error());
    const auto take = [&](std::int64_t chunk) -> Result<int> {
        Result<int> fd = peer->duplicate(run.fds[static_cast<std::size_t>(chunk)]);
        if (!fd) return with_help(std::move(fd).error());
        return fd;
    };
    return kernels::DeviceImport::open_chunks(run.chunk_bytes, std::ssize(run.fds), take);
}

}  // namespace

bool is_segment_run(std::string_view handle) {
    return handle.size() != kernels::kIpcHandleBytes && handle.size() >= kTagBytes &&
           handle[1] == 'e';
}

Result<SegmentRun> read_segment_run(std::string_view handle) {
    constexpr std::size_t kFabricBytes = 64;
    // pid, size and number are at bytes 0, 8 and 16; from version 3 on the kind of handle at 24.
    const std::size_t header_bytes = version_of(handle) < 3 ? 24 : 32;
    if (!is_known_version(handle) || handle.size() < kTagBytes + header_bytes) {
        return make_error(
            ErrorCode::kUnsupported,
            "a CUDA handle of expandable segments of {} bytes, version {}; versions 1 to 3 are "
            "known",
            handle.size(),
            version_of(handle)
        );
    }
    const std::string_view header = handle.substr(kTagBytes, header_bytes);
    const std::string_view rest = handle.substr(kTagBytes + header_bytes);
    const auto chunk_bytes = read_at<std::uint64_t>(header, 8);
    const auto num = read_at<std::uint64_t>(header, 16);
    if (num > 0 && num <= rest.size() / kFabricBytes && rest.size() == num * kFabricBytes) {
        return make_error(
            ErrorCode::kUnsupported,
            "expandable segments by fabric handles, which this engine does not import; the sender "
            "must set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or have its allocator "
            "share file descriptors"
        );
    }
    if (num == 0 || num > rest.size() / sizeof(int) || rest.size() != num * sizeof(int) ||
        chunk_bytes == 0 || chunk_bytes > std::numeric_limits<std::int64_t>::max() / num) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a CUDA handle of {} chunks of {} bytes of an expandable segment, with {} bytes of "
            "descriptors",
            num,
            chunk_bytes,
            rest.size()
        );
    }
    SegmentRun run{
        .pid = read_at<std::int32_t>(header, 0),
        .chunk_bytes = static_cast<std::int64_t>(chunk_bytes)};
    for (std::uint64_t i = 0; i < num; ++i)
        run.fds.push_back(read_at<std::int32_t>(rest, i * sizeof(int)));
    return run;
}

Result<kernels::DeviceImport> open_cuda_memory(std::string_view handle, pid_t owner) {
    if (handle.size() == kernels::kIpcHandleBytes) return kernels::DeviceImport::open(handle);
    if (is_segment_run(handle)) return open_run(handle, owner);
    if (handle.size() == kTagBytes + kernels::kIpcHandleBytes && handle[1] == 'c' &&
        is_known_version(handle))
        return kernels::DeviceImport::open(handle.substr(kTagBytes));
    return make_error(
        ErrorCode::kUnsupported,
        "a CUDA memory handle of {} bytes, version {}; known are 64 bytes, 66 of versions 1 to 3, "
        "and runs of expandable segments of versions 1 to 3",
        handle.size(),
        version_of(handle)
    );
}

}  // namespace pitstop::tp_worker
