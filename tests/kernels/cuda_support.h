// What tests of the GPU alone share: those of what other backends do not have. (backend.h has those
// that run on every one.)
#pragma once

#include "kernels/cuda_device.h"
#include "kernels/device_memory.h"
#include "tests/gpu_or_skip.h"
#include "tests/kernels/backend.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace pitstop::kernels::test {

// Asks for fewer and smaller shapes: on the GPU in software, and where PITSTOP_SMALL_SHAPES asks
// for them, as a sanitizer's user does (tests/gpu/parts.py).
[[nodiscard]] inline bool is_small() {
#if defined(PITSTOP_EMULATED)
    return true;
#else
    return std::getenv("PITSTOP_SMALL_SHAPES") != nullptr;
#endif
}

// Gives a test its stream on the GPU; skips the test where there is none.
class OnCuda : public testing::Test {
  protected:
    void SetUp() override { open_gpu_stream(stream_); }
    [[nodiscard]] Stream stream() const { return stream_.stream(); }
    [[nodiscard]] Place place() const { return {.stream = stream(), .is_gpu = true}; }

    DeviceStream stream_{};
};

}  // namespace pitstop::kernels::test
