// What every call of the runtime and the driver begins with: ordered faults, the context's sticky
// error, captures that forbid it; and the objects behind CUDA's handles.
//
// Thread: any.
#pragma once

#include "tests/emulated_gpu/graphs.h"
#include "tests/emulated_gpu/streams.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace pitstop::emulator {

// The calling thread's GPU, from cudaSetDevice.
[[nodiscard]] int current_gpu();
void set_current_gpu(int gpu);

// Success, or what the call returns at once.
[[nodiscard]] cudaError_t enter_call(const char* function);
// The same for a call that needs no context, and makes none.
[[nodiscard]] cudaError_t enter_call_without_context(const char* function);
// The same for a call that may not be made while a stream captures: the capture is invalid then.
// Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations".
[[nodiscard]] cudaError_t enter_unsafe_call(const char* function);
// Keeps the error for cudaGetLastError().
cudaError_t told(cudaError_t error);
[[nodiscard]] cudaError_t& last_error();

// Counters in memory that processes share: what an interprocess event is.
struct SharedEvent {
    std::atomic<std::uint64_t> num_recorded;
    std::atomic<std::uint64_t> num_done;
};

struct Event {
    std::mutex mutex{};
    Point last{};                                    // record
    std::shared_ptr<std::atomic<double>> done_ms{};  // when that was done, by the GPU's clock
    bool has_time = true;
    // Recorded in a stream that captures, behind these nodes.
    std::weak_ptr<Capture> capture{};
    std::vector<std::size_t> captured{};
    bool is_captured = false;
    SharedEvent* shared = nullptr;
    int shared_fd = -1;
    bool is_imported = false;
};

[[nodiscard]] std::shared_ptr<Event> find_event(cudaEvent_t handle);
// Gives it counters that other processes can map.
void share_event(Event& event);
cudaEvent_t add_event(std::shared_ptr<Event> event);
bool remove_event(cudaEvent_t handle);

// Empty: no such stream, or the legacy one while a blocking stream of its GPU captures, which ends
// that capture. Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations".
[[nodiscard]] std::shared_ptr<Stream> stream_of(cudaStream_t handle);
// What a call returns for which stream_of() gave none.
[[nodiscard]] cudaError_t no_stream(cudaStream_t handle);

}  // namespace pitstop::emulator

#define PITSTOP_ENTER()                                                        \
    if (const cudaError_t entered = ::pitstop::emulator::enter_call(__func__); \
        entered != cudaSuccess)                                                \
    return ::pitstop::emulator::told(entered)
#define PITSTOP_ENTER_WITHOUT_CONTEXT()                                                        \
    if (const cudaError_t entered = ::pitstop::emulator::enter_call_without_context(__func__); \
        entered != cudaSuccess)                                                                \
    return ::pitstop::emulator::told(entered)
#define PITSTOP_ENTER_UNSAFE()                                                        \
    if (const cudaError_t entered = ::pitstop::emulator::enter_unsafe_call(__func__); \
        entered != cudaSuccess)                                                       \
    return ::pitstop::emulator::told(entered)
