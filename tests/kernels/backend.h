// Runs one suite of tests on every backend. kernels_test has each instruction level of this
// machine. kernels_gpu_test has a GPU, and skips without one. The emulated preset has a smaller
// suite on a GPU in software, for any machine: tests/emulated_gpu/README.md says what that finds.
//
//   class Linear : public OnBackend {};
//   PITSTOP_ON_BACKENDS(Linear, Order::kEvery);
//
// A test makes its numbers on the host, put()s them into the backend's memory, and fetches the op's
// outputs.
#pragma once

#include "kernels/ops.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/thread_pool.h"
#include "tests/gpu_or_skip.h"
#include "tests/kernels/support.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::kernels::test {

struct Backend {
    std::string name{};  // a word
    const Ops* ops = nullptr;
    bool is_gpu = false;
    bool is_small = false;  // fewer and smaller shapes: a GPU in software, or under a sanitizer
};

// The orders of a sum that a suite runs with. The CPU has one for all batches (P6); on a GPU linear
// and attention have a free one, too.
enum class Order { kDefault, kFixed, kEvery };

// Returns the backends of this program (cpu_backends.cpp, cuda_backends.cpp).
[[nodiscard]] std::vector<Backend> backends(Order order);

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
    return info.param.name;
}
#define PITSTOP_ON_BACKENDS(suite, order)                             \
    INSTANTIATE_TEST_SUITE_P(                                         \
        On,                                                           \
        suite,                                                        \
        testing::ValuesIn(::pitstop::kernels::test::backends(order)), \
        ::pitstop::kernels::test::backend_name                        \
    )

// A kind of memory, and the order in which its copies take place.
struct Place {
    Stream stream{};
    bool is_gpu = false;
};

// Owns memory of some kind: on a GPU 256-byte aligned, on the host 64.
class Room {
  public:
    Room(std::int64_t bytes, Place place) : place_(place), bytes_(bytes) {
        if (place.is_gpu) {
            Result<DeviceBuffer> buffer = DeviceBuffer::create(bytes);
            EXPECT_TRUE(buffer.has_value());
            buffer_ = *std::move(buffer);
        } else {
            lines_.resize(static_cast<std::size_t>(bytes / 64 + 1));
        }
    }

    // Memory must not be freed while the stream's work may touch it.
    ~Room() {
        if (buffer_.data() != nullptr) wait();
    }
    Room(Room&&) = default;
    Room& operator=(Room&&) = delete;

    [[nodiscard]] void* data() const { return place_.is_gpu ? buffer_.data() : lines_.data(); }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    [[nodiscard]] Place place() const { return place_; }

    // Waits until all work in the stream is done.
    void wait() const {
        Result<DeviceEvent> event = DeviceEvent::create();
        EXPECT_TRUE(event.has_value());
        event->record(place_.stream);
        while (!event->is_done()) {
        }
    }

  private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };

    Place place_{};
    std::int64_t bytes_ = 0;
    DeviceBuffer buffer_{};
    mutable std::vector<Line> lines_{};
};

// A copy of host bytes in a backend's memory.
class Copy {
  public:
    Copy(const void* host, std::int64_t bytes, Place place) : room_(bytes, place) {
        if (place.is_gpu) {
            copy_to_device(room_.data(), host, bytes, place.stream);
        } else if (bytes > 0) {
            std::memcpy(room_.data(), host, static_cast<std::size_t>(bytes));
        }
    }
    [[nodiscard]] void* data() const { return room_.data(); }
    void fetch(void* host) const {
        if (room_.place().is_gpu) {
            copy_to_host(host, room_.data(), room_.bytes(), room_.place().stream);
            room_.wait();
        } else if (room_.bytes() > 0) {
            std::memcpy(host, room_.data(), static_cast<std::size_t>(room_.bytes()));
        }
    }

  private:
    Room room_;
};

// A matrix's copy in a backend's memory, guard bands included. fetch() copies it back into the
// matrix, whose destructor then checks the bands.
template <class T>
class PlacedMatrix {
  public:
    PlacedMatrix(const Matrix<T>& host, Place place)
        : host_(host.view()), copy_(begin_of(host_), bytes_of(host_), place) {}

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
    Copy copy_;
};

template <class T>
class PlacedArray {
  public:
    PlacedArray(std::span<const T> host, Place place)
        : size_(host.size()),
          copy_(host.data(), static_cast<std::int64_t>(host.size_bytes()), place) {}

    [[nodiscard]] T* data() const { return static_cast<T*>(copy_.data()); }
    [[nodiscard]] std::vector<T> fetch() const {
        std::vector<T> host(size_);
        copy_.fetch(host.data());
        return host;
    }

  private:
    std::size_t size_;
    Copy copy_;
};

// Owns scratch memory of an op, filled with NaNs.
class Scratch {
  public:
    Scratch(std::int64_t bytes, Place place) : room_(bytes, place) {
        if (place.is_gpu) {
            fill_device(room_.data(), 0xff, bytes, place.stream);
        } else {
            std::memset(room_.data(), 0xff, static_cast<std::size_t>(bytes));
        }
    }
    [[nodiscard]] Workspace workspace() const { return {room_.data(), room_.bytes()}; }

  private:
    Room room_;
};

// Opens a stream on the GPU. Skips the test without one. Only for SetUp(), as code after it would
// still run.
inline void open_gpu_stream(DeviceStream& stream) {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        ASSERT_FALSE(is_gpu_required()) << why;
        GTEST_SKIP() << why;
    }
    Result<DeviceStream> opened = DeviceStream::create(StreamPriority::kStep);
    ASSERT_TRUE(opened.has_value());
    stream = *std::move(opened);
}

// Gives a test the backend's ops and memory; skips the test if its backend needs a missing GPU.
class OnBackend : public testing::TestWithParam<Backend> {
  protected:
    void SetUp() override {
        if (GetParam().is_gpu) open_gpu_stream(gpu_stream_);
    }

    [[nodiscard]] const Ops& ops() const { return *GetParam().ops; }
    [[nodiscard]] bool is_gpu() const { return GetParam().is_gpu; }
    [[nodiscard]] bool is_small() const { return GetParam().is_small; }
    // On the CPU all of the test's threads take part.
    [[nodiscard]] Stream stream() { return is_gpu() ? gpu_stream_.stream() : stream_of(pool_); }
    // On the CPU the calling thread alone.
    [[nodiscard]] Stream one_thread() const { return is_gpu() ? gpu_stream_.stream() : Stream{}; }
    [[nodiscard]] Place place() { return {.stream = stream(), .is_gpu = is_gpu()}; }

    template <class T>
    [[nodiscard]] PlacedMatrix<T> put(const Matrix<T>& host) {
        return {host, place()};
    }
    template <class T>
    [[nodiscard]] PlacedArray<T> put(const std::vector<T>& host) {
        return {host, place()};
    }
    [[nodiscard]] Scratch scratch(std::int64_t bytes) { return {bytes, place()}; }

  private:
    ThreadPool pool_{3};
    DeviceStream gpu_stream_{};
};

}  // namespace pitstop::kernels::test
