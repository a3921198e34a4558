// The tests of the CUDA ops share this. They run on a GPU (kernels_gpu_test, which says that it
// skips where there is none), and, smaller, in the emulated preset on a GPU in software, which any
// machine has: tests/emulated_gpu/README.md says what that finds.
#pragma once

#include "kernels/cuda_device.h"
#include "kernels/device_memory.h"
#include "tests/gpu_or_skip.h"
#include "tests/kernels/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

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
    void SetUp() override {
        if (const std::string why = why_no_gpu(); !why.empty()) {
            ASSERT_FALSE(is_gpu_required()) << why;
            GTEST_SKIP() << why;
        }
        Result<DeviceStream> stream = DeviceStream::create(StreamPriority::kStep);
        ASSERT_TRUE(stream.has_value());
        stream_ = *std::move(stream);
    }
    [[nodiscard]] Stream stream() const { return stream_.stream(); }

    DeviceStream stream_{};
};

// Bytes of the host and their copy on the device, which starts 256-byte aligned.
class DeviceCopy {
  public:
    DeviceCopy(const void* host, std::int64_t bytes, Stream stream) : stream_(stream) {
        Result<DeviceBuffer> buffer = DeviceBuffer::create(bytes);
        EXPECT_TRUE(buffer.has_value());
        buffer_ = *std::move(buffer);
        copy_to_device(buffer_.data(), host, bytes, stream);
    }
    // Memory must not go while work of the stream may touch it: the upload above, at the least.
    ~DeviceCopy() {
        if (buffer_.data() != nullptr) wait();
    }
    DeviceCopy(DeviceCopy&&) = default;
    DeviceCopy& operator=(DeviceCopy&&) = delete;

    void* data() const { return buffer_.data(); }
    void fetch(void* host) const {
        copy_to_host(host, buffer_.data(), buffer_.bytes(), stream_);
        wait();
    }

  private:
    void wait() const {
        Result<DeviceEvent> event = DeviceEvent::create();
        EXPECT_TRUE(event.has_value());
        event->record(stream_);
        while (!event->is_done()) {
        }
    }

    Stream stream_{};
    DeviceBuffer buffer_{};
};

// Holds a matrix's copy on the device, guard bands and all. fetch() brings it back into the matrix,
// whose destructor then checks the bands.
template <class T>
class OnDevice {
  public:
    OnDevice(const Matrix<T>& host, Stream stream)
        : host_(host.view()), copy_(begin_of(host_), bytes_of(host_), stream) {}

    [[nodiscard]] View2<T> view() const {
        return {
            static_cast<T*>(copy_.data()) + Matrix<T>::kGuard,
            host_.rows,
            host_.cols,
            host_.stride};
    }
    void fetch(Matrix<T>& into) const { copy_.fetch(const_cast<T*>(begin_of(into.view()))); }

  private:
    static const T* begin_of(View2<const T> view) { return view.data - Matrix<T>::kGuard; }
    static std::int64_t bytes_of(View2<const T> view) {
        return (view.rows * view.stride + Matrix<T>::kGuard) * static_cast<std::int64_t>(sizeof(T));
    }

    View2<const T> host_{};
    DeviceCopy copy_;
};

template <class T>
class DeviceArray {
  public:
    DeviceArray(std::span<const T> host, Stream stream)
        : size_(host.size()),
          copy_(host.data(), static_cast<std::int64_t>(host.size_bytes()), stream) {}
    DeviceArray(const std::vector<T>& host, Stream stream)
        : DeviceArray(std::span<const T>(host), stream) {}

    [[nodiscard]] T* data() const { return static_cast<T*>(copy_.data()); }
    [[nodiscard]] std::vector<T> fetch() const {
        std::vector<T> host(size_);
        copy_.fetch(host.data());
        return host;
    }

  private:
    std::size_t size_;
    DeviceCopy copy_;
};

// Owns scratch memory of an op on the device, filled with NaNs.
class DeviceScratch {
  public:
    DeviceScratch(std::int64_t bytes, Stream stream) {
        Result<DeviceBuffer> buffer = DeviceBuffer::create(bytes);
        EXPECT_TRUE(buffer.has_value());
        buffer_ = *std::move(buffer);
        fill_device(buffer_.data(), 0xff, bytes, stream);
    }
    [[nodiscard]] Workspace workspace() const { return {buffer_.data(), buffer_.bytes()}; }

  private:
    DeviceBuffer buffer_{};
};

// A sum errs by e of the magnitudes per rounding, twice where tensor cores truncate: a chain of K /
// 16 mma, or the general kernel's of K, then bias and y; the output's own rounding on top, for
// both.
inline double linear_bound(
    double sum_magnitudes, double y, std::int64_t K, bool is_chain_of_k, DType out
) {
    const double chain =
        is_chain_of_k ? static_cast<double>(K) : static_cast<double>(K) / 16.0 + 16.0;
    return 2.0 * (chain + 4.0) * kEps32 * sum_magnitudes + 2.02 * rounding_of(out) * std::abs(y);
}

}  // namespace pitstop::kernels::test
