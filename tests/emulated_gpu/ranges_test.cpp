// Address ranges that are mapped and unmapped. Source: CUDA Driver API, "Virtual Memory
// Management".
#include "kernels/cuda_device.h"
#include "kernels/device_memory.h"
#include "kernels/device_range.h"
#include "tests/emulated_gpu/cuda_calls.h"

namespace pitstop::emulator {
namespace {

class Ranges : public testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(open_cuda_device(0).has_value()); }
};

TEST_F(Ranges, HoldZerosAtTheSameAddressAfterTheyAreMappedAgain) {
    Result<DeviceRange> range = DeviceRange::reserve(1);
    ASSERT_TRUE(range.has_value());
    std::byte* const address = range->data();
    const std::int64_t before = device_memory_info().free_bytes;
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(range->map().has_value());
        EXPECT_EQ(device_memory_info().free_bytes, before - range->bytes());
        std::uint32_t word = 7;
        copy_and_wait(&word, address, sizeof word);
        EXPECT_EQ(word, 0u);
        word = 5;
        copy_and_wait(address, &word, sizeof word);
        range->unmap();
        EXPECT_EQ(device_memory_info().free_bytes, before);
        EXPECT_EQ(range->data(), address);
    }
}

TEST_F(Ranges, MoreThanTheGpuHasIsAnError) {
    Result<DeviceRange> range = DeviceRange::reserve(device_memory_info().total_bytes + 1);
    ASSERT_TRUE(range.has_value());
    const Result<> mapped = range->map();
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(Ranges, MemoryOfARangeHasNoLegacyHandle) {
    Result<DeviceRange> range = DeviceRange::reserve(1);
    ASSERT_TRUE(range.has_value() && range->map().has_value());
    cudaIpcMemHandle_t handle{};
    EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, range->data()));
}

}  // namespace
}  // namespace pitstop::emulator
