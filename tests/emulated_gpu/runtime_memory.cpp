// CUDA's runtime: memory and copies. Source: CUDA Runtime API, "API synchronization behavior" (when
// each copy may read its source) and "Memory Management" (the errors).
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/tolls.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256}
                                    << 10;  // copies of several streams take turns after each piece

enum class Place : std::uint8_t { kDevice, kPinned, kPageable };

struct End {
    Place place = Place::kPageable;
    bool is_whole = true;  // all the bytes are in one allocation
};

End end_at(const void* address, std::size_t bytes) {
    const std::optional<Allocation> found = find_memory(address);
    if (!found) return {};
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(address) - found->begin);
    return {
        .place = is_page_locked(found->kind) ? Place::kPinned : Place::kDevice,
        .is_whole = bytes <= found->bytes - offset};
}

bool is_memory_of(int gpu, const void* address) {
    const std::optional<Allocation> found = find_memory(address);
    // A range's GPU is known to its mappings only: any GPU is accepted.
    return found && (found->kind == MemoryKind::kRange || found->gpu == gpu);
}

bool fits(cudaMemcpyKind kind, const End& to, const End& from) {
    const bool to_device = to.place == Place::kDevice;
    const bool from_device = from.place == Place::kDevice;
    switch (kind) {
        case cudaMemcpyHostToHost:
            return !to_device && !from_device;
        case cudaMemcpyHostToDevice:
            return to_device && !from_device;
        case cudaMemcpyDeviceToHost:
            return !to_device && from_device;
        case cudaMemcpyDeviceToDevice:
            return to_device && from_device;
        case cudaMemcpyDefault:
            return true;
    }
    return false;
}

// Copies piece by piece. `staged` has the bytes of a pageable source, read at the time of the call.
Work copy_work(
    void* to, const void* from, std::size_t bytes, std::shared_ptr<std::vector<std::byte>> staged
) {
    return {.kind = WorkKind::kCopy, .name = "a copy", .begin = [=]() -> Step {
                auto done = std::make_shared<std::size_t>(0);
                return [=] {
                    const std::size_t piece = std::min(kPieceBytes, bytes - *done);
                    const auto* const source =
                        staged != nullptr ? staged->data() : static_cast<const std::byte*>(from);
                    std::memmove(static_cast<std::byte*>(to) + *done, source + *done, piece);
                    *done += piece;
                    return *done == bytes;
                };
            }};
}

cudaError_t copy(
    void* to,
    const void* from,
    std::size_t bytes,
    cudaMemcpyKind kind,
    const std::shared_ptr<Stream>& stream,
    bool is_synchronous
) {
    if (bytes == 0) return cudaSuccess;
    const End to_end = end_at(to, bytes);
    const End from_end = end_at(from, bytes);
    if (to == nullptr || from == nullptr || !to_end.is_whole || !from_end.is_whole ||
        !fits(kind, to_end, from_end))
        return cudaErrorInvalidValue;
    if (to_end.place == Place::kPageable || from_end.place == Place::kPageable)
        (void)fault_at("pageable copy", stream->gpu);  // counts the copy; never fails it
    if (const std::optional<Fault> fault = fault_at("copy", stream->gpu)) {
        if (fault->kind == FaultKind::kError) {
            end_context(fault->error);
            return static_cast<cudaError_t>(fault->error);
        }
        enqueue(stream, {.kind = WorkKind::kCopy, .name = "a copy without end", .begin = [] {
                             return Step([] { return false; });
                         }});
    }
    std::shared_ptr<std::vector<std::byte>> staged;
    // In a capture nothing is staged: the node reads the source at each launch.
    if (from_end.place == Place::kPageable && stream->capture == nullptr) {
        const auto* const bytes_of = static_cast<const std::byte*>(from);
        staged = std::make_shared<std::vector<std::byte>>(bytes_of, bytes_of + bytes);
    }
    const Point point = enqueue(stream, copy_work(to, from, bytes, std::move(staged)));
    const bool is_to_pageable = to_end.place == Place::kPageable;
    // Source: "Memcpy". A copy to pageable memory always waits. A synchronous copy also waits, but
    // not from pageable memory (it returns once the source is staged) nor within the device.
    const bool waits =
        is_to_pageable || (is_synchronous && from_end.place != Place::kPageable &&
                           !(to_end.place == Place::kDevice && from_end.place == Place::kDevice));
    return waits ? static_cast<cudaError_t>(wait_for({point})) : cudaSuccess;
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
    PITSTOP_ENTER_UNSAFE();
    const int gpu = current_gpu();
    const bool is_allowed =
        settings().memory_bytes - free_memory(gpu) + static_cast<std::int64_t>(bytes) <=
        memory_limit(gpu);
    *data = bytes == 0 || !is_allowed ? nullptr : allocate_device(gpu, bytes);
    return told(*data == nullptr && bytes != 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* data) {
    PITSTOP_ENTER_UNSAFE();
    if (data == nullptr) return cudaSuccess;
    if (!free_memory_at(data, MemoryKind::kDevice)) return told(cudaErrorInvalidValue);
    return told(static_cast<cudaError_t>(pay_for_freeing(current_gpu())));
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
    PITSTOP_ENTER_UNSAFE();
    *data = bytes == 0 ? nullptr : allocate_pinned(bytes);
    pay_for_page_locking(bytes);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
    PITSTOP_ENTER_UNSAFE();
    if (data == nullptr) return cudaSuccess;
    if (!free_memory_at(data, MemoryKind::kPinned)) return told(cudaErrorInvalidValue);
    return told(static_cast<cudaError_t>(pay_for_freeing(current_gpu())));
}

cudaError_t cudaHostRegister(void* begin, std::size_t bytes, unsigned flags) {
    PITSTOP_ENTER_UNSAFE();
    if (flags != cudaHostRegisterDefault) return told(cudaErrorInvalidValue);
    pay_for_page_locking(bytes);
    const bool is_locked = lock_pages(static_cast<std::byte*>(begin), bytes);
    return told(is_locked ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* begin) {
    PITSTOP_ENTER_UNSAFE();
    return told(free_memory_at(begin, MemoryKind::kLocked) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    PITSTOP_ENTER();
    *free_bytes = static_cast<std::size_t>(free_memory(current_gpu()));
    *total_bytes = static_cast<std::size_t>(settings().memory_bytes);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    PITSTOP_ENTER();
    *attributes = {};
    const std::optional<Allocation> found = find_memory(pointer);
    if (!found) {
        attributes->device = -1;
        attributes->hostPointer = const_cast<void*>(pointer);
        return cudaSuccess;
    }
    const bool is_pinned = is_page_locked(found->kind);
    attributes->type = is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = found->gpu;
    attributes->devicePointer = const_cast<void*>(pointer);
    attributes->hostPointer = is_pinned ? const_cast<void*>(pointer) : nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    PITSTOP_ENTER_UNSAFE();
    const std::shared_ptr<Stream> stream = stream_of(nullptr);
    if (stream == nullptr) return told(no_stream(nullptr));
    return told(copy(to, from, bytes, kind, stream, /*is_synchronous=*/true));
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle
) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    return told(copy(to, from, bytes, kind, stream, /*is_synchronous=*/false));
}

// Pitches and width are in bytes. Copies row by row; any order is legal.
cudaError_t cudaMemcpy2DAsync(
    void* to,
    std::size_t to_pitch,
    const void* from,
    std::size_t from_pitch,
    std::size_t width,
    std::size_t height,
    cudaMemcpyKind kind,
    cudaStream_t handle
) {
    PITSTOP_ENTER();
    if (width > to_pitch || width > from_pitch) return told(cudaErrorInvalidPitchValue);
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    for (std::size_t row = 0; row < height; ++row) {
        const cudaError_t copied = copy(
            static_cast<std::byte*>(to) + row * to_pitch,
            static_cast<const std::byte*>(from) + row * from_pitch,
            width,
            kind,
            stream,
            /*is_synchronous=*/false
        );
        if (copied != cudaSuccess) return told(copied);
    }
    return cudaSuccess;
}

// Needs no direct access between the GPUs: CUDA then copies through the host.
cudaError_t cudaMemcpyPeerAsync(
    void* to, int to_gpu, const void* from, int from_gpu, std::size_t bytes, cudaStream_t handle
) {
    PITSTOP_ENTER();
    for (const int gpu : {to_gpu, from_gpu}) {
        if (gpu < 0 || gpu >= settings().num_gpus) return told(cudaErrorInvalidDevice);
    }
    if (!is_memory_of(to_gpu, to) || !is_memory_of(from_gpu, from))
        return told(cudaErrorInvalidValue);
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    return told(copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream, /*is_synchronous=*/false));
}

// Does not wait for the copy, as no copy between devices does.
cudaError_t cudaMemcpyPeer(
    void* to, int to_gpu, const void* from, int from_gpu, std::size_t bytes
) {
    PITSTOP_ENTER_UNSAFE();
    return cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, bytes, nullptr);
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
    PITSTOP_ENTER_UNSAFE();
    return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (bytes == 0) return cudaSuccess;
    if (const End end = end_at(to, bytes); end.place == Place::kPageable || !end.is_whole)
        return told(cudaErrorInvalidValue);
    enqueue(stream, {.kind = WorkKind::kFill, .name = "a fill", .begin = [=]() -> Step {
                         return [=] {
                             std::memset(to, value, bytes);
                             return true;
                         };
                     }});
    return cudaSuccess;
}

}  // extern "C"
