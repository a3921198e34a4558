// Waits for this process's work on the opened GPU without synchronizing the device. While any
// stream captures, a synchronization would fail and end the capture (CUDA C++ Programming Guide,
// "Prohibited and Unhandled Operations"), and graphs are captured during updates and releases.
//
// Owns:   the list of the process's streams (DeviceStream), with the point before each capture.
// Thread: any.
#pragma once

#include "kernels/runtime/stream.h"

#include <string_view>

namespace pitstop::kernels {

// Called by DeviceStream for its stream.
void list_stream(void* stream);
void unlist_stream(void* stream);

// Begins a thread-local capture, and first records a point for which other threads may
// wait meanwhile.
void begin_listed_capture(Stream stream);
// Called after cudaStreamEndCapture().
void end_listed_capture(Stream stream);

// Waits until all work enqueued before the call is done, on every listed stream; work that a stream
// captures does not count. After kDeviceWaitMax the process ends as after a failing call, and the
// message says that `what` did not end.
void wait_for_streams(std::string_view what);

}  // namespace pitstop::kernels
