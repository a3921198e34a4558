// Shared by tests that only a GPU has. (backend.h is for tests that run on every backend.)
#pragma once

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "tests/gpu_or_skip.h"
#include "tests/kernels/backend.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace pitstop::kernels::test {

// Asks for fewer and smaller shapes: on the GPU in software, and with PITSTOP_SMALL_SHAPES, which a
// sanitizer's user sets (tests/gpu/parts.py).
[[nodiscard]] inline bool is_small() {
#if defined(PITSTOP_EMULATED)
    return true;
#else
    return std::getenv("PITSTOP_SMALL_SHAPES") != nullptr;
#endif
}

// Gives a test its stream on the GPU; skips the test without one.
class OnCuda : public testing::Test {
  protected:
    void SetUp() override { open_gpu_stream(stream_); }
    [[nodiscard]] Stream stream() const { return stream_.stream(); }
    [[nodiscard]] Place place() const { return {.stream = stream(), .is_gpu = true}; }

    DeviceStream stream_{};
};

}  // namespace pitstop::kernels::test
