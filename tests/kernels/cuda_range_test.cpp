// DeviceRange during other threads' work on the GPU: an update stages, a release returns memory,
// while the loop makes a graph.
#include "kernels/runtime/device_graph.h"
#include "kernels/runtime/device_range.h"
#include "tests/kernels/cuda_support.h"

#include <thread>
#include <utility>
#include <vector>

namespace pitstop::kernels::test {
namespace {

class CudaRange : public OnCuda {
  protected:
    static constexpr std::int64_t kBytes = std::int64_t{4} << 20;

    static DeviceRange mapped_range() {
        Result<DeviceRange> range = DeviceRange::reserve(kBytes);
        EXPECT_TRUE(range.has_value());
        EXPECT_TRUE(range->map().has_value());
        return *std::move(range);
    }
};

TEST_F(CudaRange, MemoryComesAndGoesBesideACapture) {
    DeviceRange before = mapped_range();
    const Room captured_into{kBytes, place()};
    DeviceGraph::begin_capture(stream());
    fill_device(captured_into.data(), 1, kBytes, stream());
    std::thread([&] {
        before.unmap();
        EXPECT_TRUE(before.map().has_value());
        before.unmap();
    }).join();
    fill_device(captured_into.data(), 2, kBytes, stream());
    const Result<DeviceGraph> graph = DeviceGraph::end_capture(stream());
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    graph->launch(stream());
    stream_.wait();
}

TEST_F(CudaRange, MappedMemoryReadsAsZeros) {
    DeviceRange range = mapped_range();
    std::vector<std::byte> bytes(kBytes, std::byte{1});
    copy_to_host(bytes.data(), range.data(), kBytes, stream());
    stream_.wait();
    EXPECT_EQ(bytes, std::vector<std::byte>(kBytes));
}

// Work that a stream got before it began to capture still uses the memory.
TEST_F(CudaRange, MemoryGoesWhenNoStreamUsesItAnyMore) {
    constexpr int kFills = 20;
    for (const bool captures : {false, true}) {
        SCOPED_TRACE(captures ? "the stream captures" : "the stream runs");
        DeviceRange range = mapped_range();
        const Room captured_into{kBytes, place()};
        for (int i = 0; i < kFills; ++i) fill_device(range.data(), 3, kBytes, stream());
        if (captures) {
            DeviceGraph::begin_capture(stream());
            fill_device(captured_into.data(), 1, kBytes, stream());
        }
        std::thread([&] { range.unmap(); }).join();
        if (captures) {
            const Result<DeviceGraph> graph = DeviceGraph::end_capture(stream());
            ASSERT_TRUE(graph.has_value()) << graph.error().message;
        }
        stream_.wait();  // ends the process if a fill ran after the unmapping
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
