#include "base/mutex.h"
#include "kernels/runtime/check.cuh"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/launch.cuh"
#include "kernels/runtime/stream_list.h"

#include <map>
#include <memory>
#include <vector>

namespace pitstop::kernels {
namespace {

struct StreamList {
    Mutex mutex{};
    // For a capturing stream: the point before the capture. Null: it does not capture.
    std::map<void*, std::shared_ptr<const DeviceEvent>> streams GUARDED_BY(mutex){};
};

StreamList& list() {
    static StreamList* const instance = new StreamList;
    return *instance;
}

std::shared_ptr<const DeviceEvent> recorded_in(Stream stream) {
    Result<DeviceEvent> event = DeviceEvent::create();
    CHECK(event);
    event->record(stream);
    return std::make_shared<const DeviceEvent>(*std::move(event));
}

}  // namespace

void list_stream(void* stream) {
    StreamList& all = list();
    const MutexLock lock(all.mutex);
    all.streams.emplace(stream, nullptr);
}

void unlist_stream(void* stream) {
    StreamList& all = list();
    const MutexLock lock(all.mutex);
    all.streams.erase(stream);
}

// The lock keeps an event of wait_for_streams() out of the capture.
void begin_listed_capture(Stream stream) {
    StreamList& all = list();
    const MutexLock lock(all.mutex);
    all.streams[stream.handle] = recorded_in(stream);
    CUDA_CHECK(cudaStreamBeginCapture(cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
}

void end_listed_capture(Stream stream) {
    StreamList& all = list();
    const MutexLock lock(all.mutex);
    all.streams[stream.handle] = nullptr;
}

void wait_for_streams(std::string_view what) {
    std::vector<std::shared_ptr<const DeviceEvent>> points;
    {
        StreamList& all = list();
        const MutexLock lock(all.mutex);
        for (const auto& [stream, before_capture] : all.streams)
            points.push_back(before_capture ? before_capture : recorded_in({stream}));
    }
    for (const auto& point : points) point->wait(kDeviceWaitMax, what, DeviceEvent::Watch::kLoose);
}

}  // namespace pitstop::kernels
