// Choosing a device, on any machine.
#include "tp_worker/device/device.h"

#include "base/isa.h"
#include "kernels/runtime/cuda_device.h"

#include <gtest/gtest.h>

namespace pitstop::tp_worker {
namespace {

TEST(DeviceChoice, NamesWhatIsAccepted) {
    EXPECT_EQ(*parse_device_kind("auto"), DeviceKind::kAuto);
    EXPECT_EQ(*parse_device_kind("cpu"), DeviceKind::kCpu);
    EXPECT_EQ(*parse_device_kind("cuda"), DeviceKind::kCuda);
    const Result<DeviceKind> unknown = parse_device_kind("tpu");
    ASSERT_FALSE(unknown.has_value());
    EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(unknown.error().message.find("auto, cpu or cuda"), std::string::npos);
}

class WithoutGpu : public testing::Test {
  protected:
    void SetUp() override {
        const Result<int> num = kernels::num_cuda_devices();
        if (num && *num > 0) GTEST_SKIP() << "this machine has a GPU";
    }
    kernels::ThreadPool threads_{1};
};

TEST_F(WithoutGpu, CudaIsATypedErrorThatSaysWhatIsMissing) {
    const Result<Device> device =
        Device::open({.kind = DeviceKind::kCuda, .isa = best_isa()}, threads_);
    ASSERT_FALSE(device.has_value());
    const ErrorCode code = device.error().code;
    EXPECT_TRUE(
        code == ErrorCode::kUnavailable || code == ErrorCode::kUnsupported ||
        code == ErrorCode::kNotFound
    ) << device.error().message;
    EXPECT_FALSE(device.error().message.empty());
}

TEST_F(WithoutGpu, AutoTakesTheCpuAndSaysWhy) {
    const Result<Device> device =
        Device::open({.kind = DeviceKind::kAuto, .isa = best_isa()}, threads_);
    ASSERT_TRUE(device.has_value());
    EXPECT_FALSE(device->is_cuda());
    EXPECT_EQ(device->name(), kernels::cpu_ops(best_isa())->name);
    EXPECT_FALSE(device->why().empty());
}

TEST_F(WithoutGpu, TheCpuNeedsNoReason) {
    const Result<Device> device =
        Device::open({.kind = DeviceKind::kCpu, .isa = best_isa()}, threads_);
    ASSERT_TRUE(device.has_value());
    EXPECT_TRUE(device->why().empty());
}

}  // namespace
}  // namespace pitstop::tp_worker
