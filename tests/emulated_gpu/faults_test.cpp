// Ordered faults, and the effect of an access to closed memory on a context. Each test runs in a
// process of its own, because a sticky error is permanent.
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"

#include <chrono>
#include <csignal>
#include <string>

namespace pitstop::emulator {
namespace {

// Returns the number of the first line that failed.
#define REQUIRE(condition)                 \
    do {                                   \
        if (!(condition)) return __LINE__; \
    } while (false)

int touch_freed_memory() {
    std::uint32_t* words = nullptr;
    REQUIRE(cudaMalloc(&words, 4096) == cudaSuccess);
    const cudaStream_t stream = make_stream();
    REQUIRE(cudaFree(words) == cudaSuccess);
    REQUIRE(launch_double(words, 64, stream) == cudaSuccess);  // fails only when it runs
    REQUIRE(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    void* data = nullptr;  // every later call fails, too
    REQUIRE(cudaMalloc(&data, 16) == cudaErrorIllegalAddress);
    REQUIRE(cudaGetLastError() == cudaErrorIllegalAddress);
    REQUIRE(cudaGetLastError() == cudaErrorIllegalAddress);
    return 0;
}

int run_over_the_end() {
    const DeviceWords words(64);
    const cudaStream_t stream = make_stream();
    REQUIRE(launch_double(words.data(), 65, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    return 0;
}

int fail_the_second_allocation() {
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, 16) == cudaSuccess);
    REQUIRE(cudaMalloc(&data, 16) == cudaErrorMemoryAllocation);
    REQUIRE(cudaMalloc(&data, 16) == cudaSuccess);
    return 0;
}

int allocate() {
    void* data = nullptr;
    for (int i = 0; i < 3; ++i) REQUIRE(cudaMalloc(&data, 16) == cudaSuccess);
    return 0;
}

int lose_the_device() {
    const DeviceWords words(64);
    const cudaStream_t stream = make_stream();
    REQUIRE(launch_double(words.data(), 64, stream) == cudaSuccess);
    REQUIRE(launch_double(words.data(), 64, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaErrorECCUncorrectable);
    REQUIRE(cudaStreamSynchronize(stream) == cudaErrorECCUncorrectable);
    return 0;
}

int hang() {
    const DeviceWords words(64);
    const cudaStream_t stream = make_stream();
    const cudaStream_t other = make_stream();
    REQUIRE(launch_double(words.data(), 64, stream) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(words.data(), 0, 16, other) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(other) == cudaSuccess);
    for (int i = 0; i < 100; ++i) REQUIRE(cudaStreamQuery(stream) == cudaErrorNotReady);
    return 0;
}

const bool defined =
    define_part("freed", touch_freed_memory) && define_part("over", run_over_the_end) &&
    define_part("second", fail_the_second_allocation) && define_part("order", allocate) &&
    define_part("lost", lose_the_device) && define_part("hang", hang);

TEST(Faults, AnAccessToFreedMemoryEndsTheContext) { EXPECT_EQ(run_part("freed", {}), 0); }

TEST(Faults, AnAccessBehindTheEndEndsTheContext) { EXPECT_EQ(run_part("over", {}), 0); }

TEST(Faults, TheNthCallFailsAndTheNextDoesNot) {
    ASSERT_TRUE(defined);
    EXPECT_EQ(
        run_part("second", {{"PITSTOP_EMULATED_FAULTS", "cudaMalloc:2=cudaErrorMemoryAllocation"}}),
        0
    );
}

TEST(Faults, ALostDeviceStaysLost) {
    EXPECT_EQ(
        run_part("lost", {{"PITSTOP_EMULATED_FAULTS", "kernel:2=cudaErrorECCUncorrectable"}}), 0
    );
}

TEST(Faults, AKernelWithoutEndHoldsItsStreamAlone) {
    EXPECT_EQ(run_part("hang", {{"PITSTOP_EMULATED_FAULTS", "kernel:1=hang"}}), 0);
}

TEST(Faults, AnOrderThatIsNotOneEndsTheProcess) {
    EXPECT_NE(run_part("second", {{"PITSTOP_EMULATED_FAULTS", "cudaMalloc=2"}}), 0);
    // Calls cannot hang: such an order would have no effect, and its test would pass wrongly.
    constexpr int kRefused = 128 + SIGABRT;
    EXPECT_EQ(run_part("order", {{"PITSTOP_EMULATED_FAULTS", "cudaMalloc:2=hang"}}), kRefused);
    for (const char* name : {"cudaMaloc", "cuMemCreat", "malloc", "ncclBcast", ""}) {
        const std::string fault = std::string(name) + ":9=cudaErrorUnknown";
        EXPECT_EQ(run_part("order", {{"PITSTOP_EMULATED_FAULTS", fault}}), kRefused) << name;
    }
    for (const char* name : {"cudaMemcpyAsync", "cuMemCreate", "ncclBroadcast", "kernel"}) {
        const std::string fault = std::string(name) + ":9=cudaErrorUnknown";
        EXPECT_EQ(run_part("order", {{"PITSTOP_EMULATED_FAULTS", fault}}), 0) << name;
    }
}

}  // namespace
}  // namespace pitstop::emulator
