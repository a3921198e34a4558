// Tests what a failed CUDA call does to the process; needs no GPU.
#include "kernels/runtime/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace pitstop::kernels {
namespace {

TEST(CudaFailureDeathTest, GivesTheLineToTheHandlerWhichEndsTheProcess) {
    const auto fail = [] {
        set_cuda_failure_handler([](const std::string& line) {
            std::fprintf(stderr, "told: %s\n", line.c_str());
            std::_Exit(7);
        });
        end_by_cuda_failure("a.cpp:1: cudaMalloc(...): cudaErrorUnknown");
    };
    EXPECT_EXIT(fail(), testing::ExitedWithCode(7), "told: a.cpp:1: cudaMalloc");
}

TEST(CudaFailureDeathTest, WithoutAHandlerPrintsTheLineAndAborts) {
    EXPECT_DEATH(end_by_cuda_failure("a.cpp:1: cudaMalloc(...)"), "a.cpp:1: cudaMalloc");
}

}  // namespace
}  // namespace pitstop::kernels
