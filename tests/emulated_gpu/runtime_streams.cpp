// CUDA's runtime: streams, events and host functions. Source: CUDA Runtime API, "Stream Management"
// and "Event Management".
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"

#include <chrono>
#include <limits>
#include <thread>

namespace pitstop::emulator {
namespace {

// A call that waits or polls is not allowed on a stream that captures.
cudaError_t refuse_if_capturing(const Stream& stream) {
    if (stream.capture == nullptr) return cudaSuccess;
    stream.capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_if_captured(Event& event) {
    const std::scoped_lock lock(event.mutex);
    if (!event.is_captured) return cudaSuccess;
    if (const std::shared_ptr<Capture> capture = event.capture.lock()) capture->is_invalid = true;
    return cudaErrorCapturedEvent;
}

bool is_done(Event& event) {
    Point last;
    {
        const std::scoped_lock lock(event.mutex);
        if (event.is_imported)
            return event.shared->num_done.load() >= event.shared->num_recorded.load();
        last = event.last;
    }
    return is_done(last);
}

// The marker after which an event is done.
Work marker(Event& event) {
    auto done_ms = std::make_shared<std::atomic<double>>(std::numeric_limits<double>::quiet_NaN());
    event.done_ms = done_ms;
    SharedEvent* const shared = event.shared;
    const std::uint64_t number = shared != nullptr ? ++shared->num_recorded : 0;
    return {.kind = WorkKind::kMarker, .name = "an event", .begin = [=]() -> Step {
                return [=] {
                    done_ms->store(gpu_clock_ms());
                    if (shared != nullptr) shared->num_done.store(number);
                    return true;
                };
            }};
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    PITSTOP_ENTER();
    const StreamKind kind =
        (flags & cudaStreamNonBlocking) != 0 ? StreamKind::kNonBlocking : StreamKind::kBlocking;
    *stream = reinterpret_cast<cudaStream_t>(add_stream(current_gpu(), priority, kind).get());
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = handle == nullptr ? nullptr : stream_of(handle);
    if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
    remove_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (const cudaError_t error = refuse_if_capturing(*stream); error != cudaSuccess)
        return told(error);
    return told(static_cast<cudaError_t>(wait_for({end_of(stream)})));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (const cudaError_t error = refuse_if_capturing(*stream); error != cudaSuccess)
        return told(error);
    return is_done(end_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}

// A stream's captured work cannot be waited for, whatever the capture's mode and thread.
// Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": no thread may
// synchronize a device while one of its streams captures.
cudaError_t cudaDeviceSynchronize() {
    PITSTOP_ENTER();
    if (invalidate_captures_of(current_gpu(), WhichStreams::kAll))
        return told(cudaErrorStreamCaptureUnsupported);
    std::vector<Point> points;
    for (const auto& stream : streams_of(current_gpu())) points.push_back(end_of(stream));
    return told(static_cast<cudaError_t>(wait_for(points)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    const std::shared_ptr<Event> event = find_event(event_handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    const std::scoped_lock lock(event->mutex);
    if (event->is_captured) {
        const std::shared_ptr<Capture> capture = event->capture.lock();
        if (capture == nullptr) return told(cudaErrorInvalidValue);
        if (stream->capture != nullptr && stream->capture != capture) {
            stream->capture->is_invalid = true;
            capture->is_invalid = true;
            return told(cudaErrorStreamCaptureMerge);
        }
        join_capture(stream, capture, event->captured);
        return cudaSuccess;
    }
    if (stream->capture != nullptr) {
        stream->capture->is_invalid = true;
        return told(cudaErrorStreamCaptureIsolation);
    }
    Work wait{.name = "a wait for an event"};
    if (event->is_imported) {
        SharedEvent* const shared = event->shared;
        const std::uint64_t number = shared->num_recorded.load();
        wait.may_begin = [shared, number] { return shared->num_done.load() >= number; };
    } else if (event->last.stream != nullptr) {
        wait.after = {event->last};
    }
    enqueue(stream, std::move(wait));
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    enqueue(stream, {.kind = WorkKind::kHost, .name = "a host function", .begin = [=]() -> Step {
                         return [=] {
                             const InHostFunction in_host_function;
                             function(data);
                             return true;
                         };
                     }});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    PITSTOP_ENTER();
    const bool has_time = (flags & cudaEventDisableTiming) == 0;
    if ((flags & cudaEventInterprocess) != 0 && has_time) return told(cudaErrorInvalidValue);
    auto event = std::make_shared<Event>();
    event->has_time = has_time;
    if ((flags & cudaEventInterprocess) != 0) share_event(*event);
    *handle = add_event(std::move(event));
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    PITSTOP_ENTER();
    return told(remove_event(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(stream_handle);
    const std::shared_ptr<Event> event = find_event(handle);
    if (stream == nullptr) return told(no_stream(stream_handle));
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    const std::scoped_lock lock(event->mutex);
    event->is_captured = stream->capture != nullptr;
    if (event->is_captured) {
        event->capture = stream->capture;
        event->captured = stream->capture->tails[stream.get()];
        return cudaSuccess;
    }
    event->last = enqueue(stream, marker(*event));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Event> event = find_event(handle);
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = refuse_if_captured(*event); error != cudaSuccess)
        return told(error);
    if (event->is_imported) {
        while (!is_done(*event)) {
            if (sticky_error() != 0) return told(static_cast<cudaError_t>(sticky_error()));
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        return cudaSuccess;
    }
    Point last;
    {
        const std::scoped_lock lock(event->mutex);
        last = event->last;
    }
    return told(static_cast<cudaError_t>(wait_for({last})));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Event> event = find_event(handle);
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = refuse_if_captured(*event); error != cudaSuccess)
        return told(error);
    return is_done(*event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Event> begin = find_event(begin_handle);
    const std::shared_ptr<Event> end = find_event(end_handle);
    if (begin == nullptr || end == nullptr || !begin->has_time || !end->has_time ||
        begin->done_ms == nullptr || end->done_ms == nullptr)
        return told(cudaErrorInvalidResourceHandle);
    if (!is_done(*begin) || !is_done(*end)) return cudaErrorNotReady;
    *ms = static_cast<float>(end->done_ms->load() - begin->done_ms->load());
    return cudaSuccess;
}

}  // extern "C"
