// In a build without CUDA a caller that asks for a device gets an error.
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_graph.h"
#include "kernels/runtime/device_import.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/device_range.h"

namespace pitstop::kernels {
namespace {

Error no_cuda() {
    return {ErrorCode::kUnsupported, "this build has no CUDA (configure with PITSTOP_CUDA=ON)"};
}

}  // namespace

Result<int> num_cuda_devices() { return no_cuda(); }
Result<CudaDeviceInfo> open_cuda_device(int) { return no_cuda(); }
CudaDeviceInfo opened_cuda_device() { CHECK(false); }
bool has_peer_access(int) { return false; }
void end_by_cuda_failure(const std::string&) { CHECK(false); }
void set_cuda_failure_handler(CudaFailureHandler) {}
void enter_cuda_device() { CHECK(false); }
int compute_capability() { return 0; }
int num_multiprocessors() { return 0; }
DeviceMemoryInfo device_memory_info() { return {}; }

// No object can be created, so the other functions have nothing to act on.
Result<DeviceBuffer> DeviceBuffer::create(std::int64_t) { return no_cuda(); }
DeviceBuffer::~DeviceBuffer() = default;
Result<PinnedBuffer> PinnedBuffer::create(std::int64_t) { return no_cuda(); }
PinnedBuffer::~PinnedBuffer() = default;
Result<PinnedPages> PinnedPages::create(std::int64_t, std::int64_t) { return no_cuda(); }
PinnedPages::~PinnedPages() = default;
Result<DeviceStream> DeviceStream::create(StreamPriority) { return no_cuda(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::wait() const { CHECK(false); }
bool is_capturing(Stream) { return false; }
Result<DeviceEvent> DeviceEvent::create() { return no_cuda(); }
DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record(Stream) const { CHECK(false); }
void DeviceEvent::wait(Duration, std::string_view, Watch, TimePoint) const { CHECK(false); }
bool DeviceEvent::is_done() const { CHECK(false); }
void DeviceEvent::order_before(Stream) const { CHECK(false); }
double DeviceEvent::ms_since(const DeviceEvent&) const { CHECK(false); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::begin_capture(Stream, EarlyStarts) { CHECK(false); }
Result<DeviceGraph> DeviceGraph::end_capture(Stream) { return no_cuda(); }
void DeviceGraph::launch(Stream) const { CHECK(false); }
Result<DeviceImport> DeviceImport::open(std::string_view) { return no_cuda(); }
Result<DeviceImport> DeviceImport::open_chunks(std::int64_t, std::int64_t, const ChunkFd&) {
    return no_cuda();
}
DeviceImport::~DeviceImport() = default;
std::string ipc_handle_of(const DeviceBuffer&) { CHECK(false); }
Result<EventImport> EventImport::open(std::string_view) { return no_cuda(); }
EventImport::~EventImport() = default;
Result<bool> EventImport::is_done() const { return no_cuda(); }
Result<DeviceRange> DeviceRange::reserve(std::int64_t) { return no_cuda(); }
DeviceRange::~DeviceRange() = default;
Result<> DeviceRange::map() { return no_cuda(); }
void DeviceRange::unmap() { CHECK(false); }
Result<int> DeviceRange::export_chunk(std::size_t) const { return no_cuda(); }
void copy_to_device(void*, const void*, std::int64_t, Stream) { CHECK(false); }
void copy_to_host(void*, const void*, std::int64_t, Stream) { CHECK(false); }
void copy_on_device(void*, const void*, std::int64_t, Stream) { CHECK(false); }
void copy_rows_on_device(View2<const float>, View2<float>, Stream) { CHECK(false); }
void copy_and_wait(void*, const void*, std::int64_t) { CHECK(false); }
void fill_device(void*, std::uint8_t, std::int64_t, Stream) { CHECK(false); }

}  // namespace pitstop::kernels
