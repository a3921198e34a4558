// The objects behind CUDA's handles, and the checks with which every call of the runtime and the
// driver begins: ordered faults, the context's sticky error, captures that forbid the call.
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

// Success, or the error that the call must return at once.
[[nodiscard]] cudaError_t enter_call(const char* function);
// enter_call() for a call that needs no context and creates none.
[[nodiscard]] cudaError_t enter_call_without_context(const char* function);
// enter_call() for a call that is forbidden while a stream captures: it fails and invalidates the
// capture.
// Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations".
[[nodiscard]] cudaError_t enter_unsafe_call(const char* function);
// Keeps the error for cudaGetLastError(), and returns it.
cudaError_t told(cudaError_t error);
[[nodiscard]] cudaError_t& last_error();

// An interprocess event: counters in memory that processes share.
struct SharedEvent {
    std::atomic<std::uint64_t> num_recorded;
    std::atomic<std::uint64_t> num_done;
};

struct Event {
    std::mutex mutex{};
    Point last{};                                    // the last record
    std::shared_ptr<std::atomic<double>> done_ms{};  // when `last` was done, by the GPU's clock
    bool has_time = true;
    // The nodes before an event that was recorded in a capture.
    std::weak_ptr<Capture> capture{};
    std::vector<std::size_t> captured{};
    bool is_captured = false;
    SharedEvent* shared = nullptr;
    int shared_fd = -1;
    bool is_imported = false;
};

[[nodiscard]] std::shared_ptr<Event> find_event(cudaEvent_t handle);
// Gives the event counters that other processes can map.
void share_event(Event& event);
cudaEvent_t add_event(std::shared_ptr<Event> event);
bool remove_event(cudaEvent_t handle);

// Null if there is no such stream. Null, too, for the legacy stream while a blocking stream of its
// GPU captures: using it invalidates that capture. Source: CUDA C++ Programming Guide, "Prohibited
// and Unhandled Operations".
[[nodiscard]] std::shared_ptr<Stream> stream_of(cudaStream_t handle);
// The error of a call for which stream_of() returned null.
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
