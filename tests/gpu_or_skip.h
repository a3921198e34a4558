// Tests that need a GPU: without one they skip and say why. Where PITSTOP_REQUIRE_GPU is in the
// environment (tests/gpu/run --require-gpu) they fail instead, and so does a program none of whose
// tests ran: green means that it ran.
#pragma once

#include "kernels/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

namespace pitstop {

[[nodiscard]] inline bool is_gpu_required() {
    return std::getenv("PITSTOP_REQUIRE_GPU") != nullptr;
}

// Opens GPU 0; empty where that went well.
[[nodiscard]] inline std::string why_no_gpu() {
    const Result<int> num = kernels::num_cuda_devices();
    if (!num) return num.error().message;
    if (*num == 0) return "no CUDA device: the driver shows none";
    const Result<kernels::CudaDeviceInfo> info = kernels::open_cuda_device(0);
    return info ? "" : "GPU 0 cannot be used: " + info.error().message;
}

// Skips the running test where there is no GPU, or fails it where one is required. For the end of a
// SetUp(): what stands behind the call there would run all the same.
inline void skip_without_gpu() {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        ASSERT_FALSE(is_gpu_required()) << why;
        GTEST_SKIP() << why;
    }
}

// At the program's end: GoogleTest calls a program a success whose filter fits no test.
inline void fail_if_nothing_ran() {
    const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
    if (!is_gpu_required() || testing::GTEST_FLAG(list_tests) || tests.successful_test_count() > 0)
        return;
    std::fprintf(stderr, "a GPU is required, and no test passed on one\n");
    std::fflush(nullptr);
    ::_exit(1);
}
inline const bool is_end_watched = [] {
    (void)testing::UnitTest::GetInstance();  // made before, so that it is there at the end
    return std::atexit(fail_if_nothing_ran) == 0;
}();

}  // namespace pitstop
