#include "bench/gpu_meter.h"

#include "bench/gpu_sizes.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <stdexcept>

namespace pitstop::kernels::bench {
namespace {

using Json = nlohmann::json;

constexpr int kSamples = kScaledDown > 1 ? 2 : 10;
constexpr double kSampleMs = 20.0;
constexpr std::int64_t kWorkspaceBytes = (std::int64_t{512} << 20) / kScaledDown;

const char* name_of(GpuLimit against) {
    switch (against) {
        case GpuLimit::kCopy:
            return "copy bandwidth";
        case GpuLimit::kMatrix:
            return "matrix rate";
        case GpuLimit::kRoofline:
            return "roofline";
    }
    CHECK(false);
}

}  // namespace

GpuMeter::GpuMeter() : figures_(std::make_unique<Json>(Json::array())) {}
GpuMeter::GpuMeter(GpuMeter&&) noexcept = default;
GpuMeter& GpuMeter::operator=(GpuMeter&&) noexcept = default;
GpuMeter::~GpuMeter() = default;

Result<GpuMeter> GpuMeter::make() {
    GpuMeter meter;
    ASSIGN_OR_RETURN(meter.stream_, DeviceStream::create(StreamPriority::kStep));
    ASSIGN_OR_RETURN(meter.begin_, DeviceEvent::create());
    ASSIGN_OR_RETURN(meter.end_, DeviceEvent::create());
    ASSIGN_OR_RETURN(meter.workspace_, DeviceBuffer::create(kWorkspaceBytes));
    ASSIGN_OR_RETURN(
        meter.arrivals_,
        DeviceBuffer::create(AttentionArgs::kArrivals * std::int64_t{sizeof(std::uint32_t)})
    );
    kernels::fill_device(meter.arrivals_.data(), 0, meter.arrivals_.bytes(), meter.stream());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    meter.noise_.resize(std::size_t{8} << 20);
    for (bf16& x : meter.noise_) x = to_bf16(normal(random));
    return meter;
}

void GpuMeter::measure_limits() {
    const std::int64_t bytes = (std::int64_t{4} << 30) / kScaledDown;
    const DeviceBuffer from = buffer(bytes);
    const DeviceBuffer to = buffer(bytes);
    const double copy_s = median_seconds([&](int) {
        kernels::copy_on_device(to.data(), from.data(), bytes, stream());
    });
    limits_.copy_bytes_s = 2.0 * static_cast<double>(bytes) / copy_s;
    measure_bus();
    constexpr std::int64_t kSide = 8192 / kScaledDown;
    const DeviceBuffer x = buffer(kSide * kSide * 2);
    const DeviceBuffer w = buffer(kSide * kSide * 2);
    const DeviceBuffer y = buffer(kSide * kSide * 2);
    const void* const only_w = w.data();
    tune(x, {&only_w, 1}, y, kSide, kSide, kSide);
    const double product_s =
        median_seconds([&](int) { multiply(*cuda_ops(), x, w.data(), y, kSide, kSide, kSide); });
    limits_.matrix_flop_s = 2.0 * static_cast<double>(kSide * kSide * kSide) / product_s;
    std::printf(
        "copy %.0f GB/s (read + write), from the host %.1f, to it %.1f, bf16 products %.0f "
        "TFLOP/s\n",
        limits_.copy_bytes_s * 1e-9,
        limits_.up_bytes_s * 1e-9,
        limits_.down_bytes_s * 1e-9,
        limits_.matrix_flop_s * 1e-12
    );
}

void GpuMeter::measure_bus() {
    constexpr std::int64_t kBytes = (std::int64_t{1} << 30) / kScaledDown;
    const DeviceBuffer on_gpu = buffer(kBytes);
    const Result<PinnedBuffer> on_host = PinnedBuffer::create(kBytes);
    if (!on_host) throw std::runtime_error(on_host.error().message);
    const double up_s = median_seconds([&](int) {
        kernels::copy_to_device(on_gpu.data(), on_host->data(), kBytes, stream());
    });
    const double down_s = median_seconds([&](int) {
        kernels::copy_to_host(on_host->data(), on_gpu.data(), kBytes, stream());
    });
    limits_.up_bytes_s = static_cast<double>(kBytes) / up_s;
    limits_.down_bytes_s = static_cast<double>(kBytes) / down_s;
}

Json GpuMeter::report() const {
    return {
        {"limits",
         {{"copy_gb_s", limits_.copy_bytes_s * 1e-9},
          {"h2d_gb_s", limits_.up_bytes_s * 1e-9},
          {"d2h_gb_s", limits_.down_bytes_s * 1e-9},
          {"matrix_tflop_s", limits_.matrix_flop_s * 1e-12}}},
        {"kernels", *figures_}};
}

DeviceBuffer GpuMeter::buffer(std::int64_t bytes) const {
    return filled(noise_.data(), noise_.size() * sizeof(bf16), static_cast<std::size_t>(bytes));
}

DeviceBuffer GpuMeter::floats(std::int64_t num) const {
    std::vector<float> host(noise_.size());
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = to_float(noise_[i]);
    return filled(
        host.data(), host.size() * sizeof(float), static_cast<std::size_t>(num) * sizeof(float)
    );
}
DeviceBuffer GpuMeter::filled(const void* host, std::size_t host_bytes, std::size_t bytes) const {
    Result<DeviceBuffer> made = DeviceBuffer::create(static_cast<std::int64_t>(bytes));
    if (!made) throw std::runtime_error(made.error().message);
    for (std::size_t at = 0; at < bytes; at += host_bytes) {
        kernels::copy_and_wait(
            static_cast<std::byte*>(made->data()) + at,
            host,
            static_cast<std::int64_t>(std::min(host_bytes, bytes - at))
        );
    }
    return *std::move(made);
}

double GpuMeter::median_seconds(const Call& call) {
    int number = 0;
    const auto run_ms = [&](int num) {
        begin_.record(stream());
        for (int i = 0; i < num; ++i) call(number++);
        end_.record(stream());
        end_.wait(kernels::kDeviceWaitMax, "a benchmark");
        return end_.ms_since(begin_);
    };
    run_ms(3);  // chooses algorithms, fills caches
    const double once_ms = std::max(run_ms(3) / 3, 1e-4);
    const int num = std::clamp(static_cast<int>(kSampleMs / once_ms), 1, 2000);
    std::vector<double> samples;
    for (int i = 0; i < kSamples; ++i) samples.push_back(run_ms(num) / num);
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2] * 1e-3;
}

void GpuMeter::measure(const GpuCase& c, const Call& call) {
    const double s = median_seconds(call);
    const double fraction = limits_.least(c) / s;
    figures_->push_back(
        {{"family", c.family},
         {"what", c.what},
         {"us", s * 1e6},
         {"bytes", c.bytes},
         {"flops", c.flops},
         {"of", name_of(c.against)},
         {"fraction", fraction},
         {"target", c.target},
         {"met", c.target == 0 ? Json(nullptr) : Json(fraction >= c.target)}}
    );
    std::printf(
        "%-12s %-44s %9.1f us %7.0f GB/s %6.0f TFLOP/s  %3.0f %% of the %s%s\n",
        c.family.c_str(),
        c.what.c_str(),
        s * 1e6,
        c.bytes / s * 1e-9,
        c.flops / s * 1e-12,
        100 * fraction,
        name_of(c.against),
        c.target == 0          ? ""
        : fraction >= c.target ? ", target met"
                               : ", BELOW TARGET"
    );
    std::fflush(stdout);
    after_figure_();
}

void GpuMeter::tune(
    const DeviceBuffer& x,
    std::span<const void* const> all_w,
    const DeviceBuffer& y,
    std::int64_t M,
    std::int64_t N,
    std::int64_t depth
) const {
    std::vector<LinearPart> parts;
    for (const void* const w : all_w) {
        parts.push_back(
            {.w = {static_cast<const bf16*>(w), N, depth, depth}, .y = halves_of(y, M, N)}
        );
    }
    std::vector<LinearArgs> rotation;
    for (const LinearPart& part : parts) {
        rotation.push_back(
            {.x = halves_of(x, M, depth),
             .parts = {&part, 1},
             .workspace = workspace(),
             .stream = stream()}
        );
    }
    (void)cuda_ops()->tune_linear(rotation);
}

void GpuMeter::multiply(
    const Ops& ops,
    const DeviceBuffer& x,
    const void* w,
    const DeviceBuffer& y,
    std::int64_t M,
    std::int64_t N,
    std::int64_t depth
) const {
    const LinearPart part{
        .w = {static_cast<const bf16*>(w), N, depth, depth}, .y = halves_of(y, M, N)};
    ops.linear(
        {.x = halves_of(x, M, depth),
         .parts = {&part, 1},
         .workspace = workspace(),
         .stream = stream()}
    );
}

View2<float> floats_of(const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols) {
    return {static_cast<float*>(memory.data()), rows, cols, cols};
}
ActView halves_of(const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols) {
    return {memory.data(), DType::kBF16, rows, cols, cols};
}

}  // namespace pitstop::kernels::bench
