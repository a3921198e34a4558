// Tests that need a GPU skip without one, and say why. With PITSTOP_REQUIRE_GPU in the environment
// (tests/gpu/run --require-gpu) they fail instead, and so does a program none of whose tests ran: a
// pass means that something ran.
#pragma once

#include "kernels/runtime/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

namespace pitstop {

[[nodiscard]] inline bool is_gpu_required() {
    return std::getenv("PITSTOP_REQUIRE_GPU") != nullptr;
}

// Opens GPU 0; returns the error, or an empty text.
[[nodiscard]] inline std::string why_no_gpu() {
    const Result<int> num = kernels::num_cuda_devices();
    if (!num) return num.error().message;
    if (*num == 0) return "no CUDA device: the driver shows none";
    const Result<kernels::CudaDeviceInfo> info = kernels::open_cuda_device(0);
    return info ? "" : "GPU 0 cannot be used: " + info.error().message;
}

// Skips the running test without a GPU, or fails it if one is required. To be called last in a
// SetUp(): code after the call would still run.
inline void skip_without_gpu() {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        ASSERT_FALSE(is_gpu_required()) << why;
        GTEST_SKIP() << why;
    }
}

// Runs at the program's end: GoogleTest passes a program whose filter matches no test.
inline void fail_if_nothing_ran() {
    const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
    if (!is_gpu_required() || testing::GTEST_FLAG(list_tests) || tests.successful_test_count() > 0)
        return;
    std::fprintf(stderr, "a GPU is required, and no test passed on one\n");
    std::fflush(nullptr);
    ::_exit(1);
}
inline const bool is_end_watched = [] {
    (void)testing::UnitTest::GetInstance();  // made early, so that it exists at the end
    return std::atexit(fail_if_nothing_ran) == 0;
}();

}  // namespace pitstop
