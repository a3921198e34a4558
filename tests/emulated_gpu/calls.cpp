#include "tests/emulated_gpu/calls.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/contexts.h"
#include "tests/emulated_gpu/errors.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/tolls.h"

#include <map>
#include <optional>
#include <utility>

namespace pitstop::emulator {
namespace {

thread_local int gpu_of_thread = 0;
thread_local cudaError_t last_error_of_thread = cudaSuccess;

struct Events {
    std::mutex mutex{};
    std::map<cudaEvent_t, std::shared_ptr<Event>> by_handle{};
};
Events& events() {
    static Events* const instance = new Events;
    return *instance;
}

}  // namespace

int current_gpu() { return gpu_of_thread; }
void set_current_gpu(int gpu) { gpu_of_thread = gpu; }

cudaError_t& last_error() { return last_error_of_thread; }

cudaError_t told(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error_of_thread = error;
    return error;
}

cudaError_t enter_call_without_context(const char* function) {
    wait_for_payers();
    // Source: CUDA Runtime API, cudaLaunchHostFunc: a host function must make no CUDA calls.
    if (is_in_host_function()) return cudaErrorNotPermitted;
    if (const std::optional<Fault> fault = fault_at(function, current_gpu())) {
        const ErrorEntry* const entry = error_entry(fault->error);
        if (entry != nullptr && entry->is_sticky) end_context(entry->number);
        return static_cast<cudaError_t>(fault->error);
    }
    return static_cast<cudaError_t>(sticky_error());
}

cudaError_t enter_call(const char* function) {
    if (const cudaError_t error = enter_call_without_context(function); error != cudaSuccess)
        return error;
    return open_context(current_gpu()) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t enter_unsafe_call(const char* function) {
    if (const cudaError_t error = enter_call(function); error != cudaSuccess) return error;
    return invalidate_captures() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

std::shared_ptr<Event> find_event(cudaEvent_t handle) {
    const std::scoped_lock lock(events().mutex);
    const auto found = events().by_handle.find(handle);
    return found == events().by_handle.end() ? nullptr : found->second;
}

cudaEvent_t add_event(std::shared_ptr<Event> event) {
    const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
    const std::scoped_lock lock(events().mutex);
    events().by_handle[handle] = std::move(event);
    return handle;
}

bool remove_event(cudaEvent_t handle) {
    const std::scoped_lock lock(events().mutex);
    return events().by_handle.erase(handle) == 1;
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
    if (handle == nullptr && invalidate_captures_of(current_gpu(), WhichStreams::kBlocking))
        return nullptr;
    return find_stream(handle, current_gpu());
}

cudaError_t no_stream(cudaStream_t handle) {
    return handle == nullptr ? cudaErrorStreamCaptureImplicit : cudaErrorInvalidResourceHandle;
}

}  // namespace pitstop::emulator
