// Times calls of CUDA kernels, as fractions of the GPU's limits.
#pragma once

#include "kernels/ops.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pitstop::kernels::bench {

enum class GpuLimit : std::uint8_t { kCopy, kMatrix, kRoofline };

struct GpuCase {
    std::string family{};
    std::string what{};
    double bytes = 0;  // the least number of bytes moved per call
    double flops = 0;
    GpuLimit against = GpuLimit::kCopy;
    double target = 0;  // fraction; 0: none
};

struct GpuLimits {
    double copy_bytes_s = 0;
    double matrix_flop_s = 0;
    double up_bytes_s = 0;    // from page-locked host memory; 0: not measured
    double down_bytes_s = 0;  // to page-locked host memory

    // The least number of seconds that a case can take.
    [[nodiscard]] double least(const GpuCase& c) const {
        const double copy = c.bytes / copy_bytes_s;
        const double matrix = c.flops / matrix_flop_s;
        if (c.against == GpuLimit::kCopy) return copy;
        return c.against == GpuLimit::kMatrix ? matrix : std::max(copy, matrix);
    }
};

// A figure is the median of some timings, by events, of as many launches as fit 20 ms. A failure
// (most likely of device memory) ends the program: std::runtime_error.
class GpuMeter {
  public:
    // `number` is the number of the call, to rotate the inputs.
    using Call = std::function<void(int number)>;

    static Result<GpuMeter> make();
    GpuMeter(GpuMeter&&) noexcept;
    GpuMeter& operator=(GpuMeter&&) noexcept;
    ~GpuMeter();

    // Copies 4 GiB within the GPU and 1 GiB from and to the host, and multiplies bf16 matrices of
    // 8192 x 8192.
    void measure_limits();
    void set_limits(const GpuLimits& limits) { limits_ = limits; }

    // Prints the figure, and keeps it for the report.
    void measure(const GpuCase& c, const Call& call);
    // Returns the median of the timings of a call.
    [[nodiscard]] double median_seconds(const Call& call);
    [[nodiscard]] const GpuLimits& limits() const { return limits_; }
    void call_after_each_figure(std::function<void()> call) { after_figure_ = std::move(call); }
    [[nodiscard]] nlohmann::json report() const;

    // Returns device memory full of normal bf16 numbers.
    [[nodiscard]] DeviceBuffer buffer(std::int64_t bytes) const;
    // Returns device memory full of fp32 numbers (bf16 numbers read as fp32 would include NaNs).
    [[nodiscard]] DeviceBuffer floats(std::int64_t num) const;
    // Returns a device copy of a host array.
    template <class X>
    [[nodiscard]] DeviceBuffer array(const std::vector<X>& host) const {
        return filled(host.data(), host.size() * sizeof(X), host.size() * sizeof(X));
    }
    [[nodiscard]] Stream stream() const { return stream_.stream(); }
    [[nodiscard]] Workspace workspace() const { return {workspace_.data(), workspace_.bytes()}; }
    // Attention's arrival counters: zeros, which no other op writes.
    [[nodiscard]] std::uint32_t* arrivals() const {
        return static_cast<std::uint32_t*>(arrivals_.data());
    }

    // Chooses cuBLASLt's algorithm for multiply() with these weights (linear_tuning.h).
    void tune(
        const DeviceBuffer& x,
        std::span<const void* const> all_w,
        const DeviceBuffer& y,
        std::int64_t M,
        std::int64_t N,
        std::int64_t depth
    ) const;
    // Computes y [M, N] = x [M, depth] w [N, depth]^T, in bf16.
    void multiply(
        const Ops& ops,
        const DeviceBuffer& x,
        const void* w,
        const DeviceBuffer& y,
        std::int64_t M,
        std::int64_t N,
        std::int64_t depth
    ) const;

  private:
    GpuMeter();
    void measure_bus();

    // Allocates memory and fills it with repetitions of the host's bytes.
    [[nodiscard]] DeviceBuffer filled(const void* host, std::size_t host_bytes, std::size_t bytes)
        const;

    DeviceStream stream_{};
    DeviceEvent begin_{};
    DeviceEvent end_{};
    DeviceBuffer workspace_{};
    DeviceBuffer arrivals_{};
    std::vector<bf16> noise_{};
    GpuLimits limits_{};
    std::unique_ptr<nlohmann::json> figures_;
    std::function<void()> after_figure_ = [] {};
};

View2<float> floats_of(const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols);
ActView halves_of(const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols);

}  // namespace pitstop::kernels::bench
