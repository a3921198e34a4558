#include "bench/gpu_gaps.h"

#include "bench/gpu_sizes.h"
#include "kernels/attention_cuda.h"
#include "kernels/runtime/device_graph.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <stdexcept>

namespace pitstop::kernels::bench {
namespace {

using Json = nlohmann::json;

constexpr int kLayers = 8;   // their weights exceed the L2 cache
constexpr int kRounds = 15;  // runs of the step; the median is kept
constexpr std::int64_t P = 16, kKeys = 1024 / kScaledDown + P;

struct LaunchedOp {
    const char* what;
    double bytes;
    std::function<void(int layer)> launch;
};

// i -> first + i * step, for i < num.
template <class X>
std::vector<X> series(std::int64_t num, std::int64_t first, std::int64_t step) {
    std::vector<X> numbers;
    for (std::int64_t i = 0; i < num; ++i) numbers.push_back(static_cast<X>(first + i * step));
    return numbers;
}

// The buffers and kernels of a layer's step of `rows` requests, in order.
class Layer {
  public:
    Layer(GpuMeter& gpu, const GpuModelSizes& sizes, std::int64_t rows)
        : gpu_(gpu),
          s_(sizes),
          num_rows_(rows),
          x_(gpu.floats(num_rows_ * s_.H)),
          delta_(gpu.floats(num_rows_ * s_.H)),
          norm_(gpu.buffer(std::max(s_.H, s_.D) * 2)),
          normed_(gpu.buffer(num_rows_ * s_.H * 2)),
          qkv_(gpu.buffer(num_rows_ * qkv_cols() * 2)),
          rotated_(gpu.buffer(num_rows_ * s_.Q * s_.D * 2)),
          attended_(gpu.buffer(num_rows_ * s_.Q * s_.D * 2)),
          both_(gpu.buffer(num_rows_ * 2 * s_.F * 2)),
          gated_(gpu.buffer(num_rows_ * s_.F * 2)),
          out_(gpu.buffer(num_rows_ * s_.H * 2)),
          cos_(gpu.floats(s_.D / 2)),
          sin_(gpu.floats(s_.D / 2)),
          slots_(gpu.array(series<std::int64_t>(num_rows_, kKeys - 1, kKeys))),
          positions_(gpu.array(series<std::int32_t>(num_rows_, 0, 0))
          ),  // all 0: cos_ and sin_ have one row
          q_starts_(gpu.array(series<std::int32_t>(num_rows_ + 1, 0, 1))),
          kv_lens_(gpu.array(series<std::int32_t>(num_rows_, kKeys, 0))),
          page_starts_(gpu.array(series<std::int32_t>(num_rows_, 0, kKeys / P))),
          weights_(gpu.buffer(layer_bytes() * kLayers)) {
        pages_ = gpu.array(series<std::int32_t>(num_rows_ * kKeys / P, 0, 1));
        kv_ = {
            .num_pages = static_cast<std::int32_t>(num_rows_ * kKeys / P),
            .page_size = P,
            .num_kv_heads = static_cast<std::int32_t>(s_.K),
            .head_dim = static_cast<std::int32_t>(s_.D)};
        kv_memory_ = gpu.buffer(kernels::kv_bytes(kv_));
        kv_.data = kv_memory_.data();
    }

    [[nodiscard]] std::vector<LaunchedOp> ops() {
        const std::int64_t qkv = 0, o = qkv_cols() * s_.H, gate_up = o + s_.H * s_.Q * s_.D,
                           down = gate_up + 2 * s_.F * s_.H;
        return {
            {"rmsnorm", 14.0 * static_cast<double>(num_rows_ * s_.H), [this](int) { norm(); }},
            product("qkv", normed_, qkv, qkv_, qkv_cols(), s_.H),
            {"rope", 4.0 * static_cast<double>(num_rows_ * qkv_cols()), [this](int) { rope(); }},
            {"attention",
             4.0 * static_cast<double>(num_rows_ * kKeys * s_.K * s_.D),
             [this](int) { attend(); }},
            product("o", attended_, o, out_, s_.H, s_.Q * s_.D),
            {"rmsnorm, residual",
             14.0 * static_cast<double>(num_rows_ * s_.H),
             [this](int) { norm(); }},
            product("gate, up", normed_, gate_up, both_, 2 * s_.F, s_.H),
            {"silu_mul", 6.0 * static_cast<double>(num_rows_ * s_.F), [this](int) { silu(); }},
            product("down", gated_, down, out_, s_.H, s_.F),
        };
    }

  private:
    [[nodiscard]] std::int64_t qkv_cols() const { return (s_.Q + 2 * s_.K) * s_.D; }
    [[nodiscard]] std::int64_t layer_bytes() const {
        return 2 * (qkv_cols() * s_.H + s_.H * s_.Q * s_.D + 3 * s_.F * s_.H);
    }

    void norm() {
        cuda_ops()->rmsnorm(
            {.x = floats_of(x_, num_rows_, s_.H),
             .delta = floats_of(delta_, num_rows_, s_.H),
             .w = static_cast<const bf16*>(norm_.data()),
             .y = halves_of(normed_, num_rows_, s_.H),
             .eps = 1e-6f,
             .stream = gpu_.stream()}
        );
    }

    void rope() {
        const ActView all = halves_of(qkv_, num_rows_, qkv_cols());
        cuda_ops()->rope(
            {.q = kernels::cols(all, 0, s_.Q * s_.D),
             .k = kernels::cols(all, s_.Q * s_.D, s_.K * s_.D),
             .v = kernels::cols(all, (s_.Q + s_.K) * s_.D, s_.K * s_.D),
             .q_out = halves_of(rotated_, num_rows_, s_.Q * s_.D),
             .kv = kv_,
             .slots = static_cast<const std::int64_t*>(slots_.data()),
             .positions = static_cast<const std::int32_t*>(positions_.data()),
             .cos = floats_of(cos_, 1, s_.D / 2),
             .sin = floats_of(sin_, 1, s_.D / 2),
             .q_norm = static_cast<const bf16*>(norm_.data()),
             .k_norm = static_cast<const bf16*>(norm_.data()),
             .norm_eps = 1e-6f,
             .stream = gpu_.stream()}
        );
    }

    void attend() {
        kernels::attention_cuda(
            {.q = halves_of(rotated_, num_rows_, s_.Q * s_.D),
             .out = halves_of(attended_, num_rows_, s_.Q * s_.D),
             .kv = kv_,
             .num_q_heads = static_cast<std::int32_t>(s_.Q),
             .num_rows = static_cast<std::int32_t>(num_rows_),
             .q_starts = static_cast<const std::int32_t*>(q_starts_.data()),
             .kv_lens = static_cast<const std::int32_t*>(kv_lens_.data()),
             .pages = static_cast<const PageId*>(pages_.data()),
             .page_starts = static_cast<const std::int32_t*>(page_starts_.data()),
             .kv_len_max = static_cast<std::int32_t>(kKeys),
             .q_len_max = 1,
             .scale = 0.0883883476f,
             .workspace = gpu_.workspace(),
             .arrivals = gpu_.arrivals(),
             .stream = gpu_.stream()}
        );
    }

    void silu() {
        const ActView both = halves_of(both_, num_rows_, 2 * s_.F);
        cuda_ops()->silu_mul(
            {.gate = kernels::cols(both, 0, s_.F),
             .up = kernels::cols(both, s_.F, s_.F),
             .y = halves_of(gated_, num_rows_, s_.F),
             .stream = gpu_.stream()}
        );
    }

    // Returns the op y [M, N] = x [M, depth] w^T, with the layer's own weights. Chooses the
    // algorithm now.
    LaunchedOp product(
        const char* what,
        const DeviceBuffer& x,
        std::int64_t offset,  // elements from the layer's first weight to w
        const DeviceBuffer& y,
        std::int64_t N,
        std::int64_t depth
    ) {
        const auto w_of = [this, offset](int layer) -> const void* {
            return static_cast<const std::byte*>(weights_.data()) + layer * layer_bytes() +
                   2 * offset;
        };
        std::vector<const void*> all_w;
        for (int layer = 0; layer < kLayers; ++layer) all_w.push_back(w_of(layer));
        gpu_.tune(x, all_w, y, num_rows_, N, depth);
        return {
            what,
            2.0 * static_cast<double>(N * depth + num_rows_ * (N + depth)),
            [this, w_of, &x, &y, N, depth](int layer) {
                gpu_.multiply(*cuda_ops(), x, w_of(layer), y, num_rows_, N, depth);
            }};
    }

    GpuMeter& gpu_;
    GpuModelSizes s_;
    std::int64_t num_rows_;
    DeviceBuffer x_, delta_, norm_, normed_, qkv_, rotated_, attended_, both_, gated_, out_;
    DeviceBuffer cos_, sin_, slots_, positions_, q_starts_, kv_lens_, page_starts_, weights_;
    DeviceBuffer pages_{}, kv_memory_{};
    KvCache kv_{};
};

DeviceEvent make_event() {
    Result<DeviceEvent> made = DeviceEvent::create();
    if (!made) throw std::runtime_error(made.error().message);
    return *std::move(made);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Microseconds from each op's event to the next one's, summed over the layers: [ops].
std::vector<double> times_in_step(GpuMeter& gpu, const std::vector<LaunchedOp>& ops) {
    std::vector<DeviceEvent> events;
    for (std::size_t i = 0; i <= ops.size() * kLayers; ++i) events.push_back(make_event());
    std::vector<std::vector<double>> rounds(ops.size());
    for (int round = 0; round < kRounds; ++round) {
        std::size_t next = 0;
        events[next++].record(gpu.stream());
        for (int layer = 0; layer < kLayers; ++layer) {
            for (const LaunchedOp& op : ops) {
                op.launch(layer);
                events[next++].record(gpu.stream());
            }
        }
        events.back().wait(kernels::kDeviceWaitMax, "a benchmark");
        std::vector<double> us(ops.size());
        for (std::size_t i = 1; i < events.size(); ++i)
            us[(i - 1) % ops.size()] += 1e3 * events[i].ms_since(events[i - 1]);
        for (std::size_t i = 0; i < ops.size(); ++i) rounds[i].push_back(us[i]);
    }
    std::vector<double> us;
    for (std::vector<double>& of_op : rounds) us.push_back(median(std::move(of_op)));
    return us;
}

// Returns the microseconds of all layers as one graph. ops[left_out] is not launched.
double graph_us(
    GpuMeter& gpu,
    const std::vector<LaunchedOp>& ops,
    std::optional<std::size_t> left_out,
    kernels::DeviceGraph::EarlyStarts early_starts
) {
    kernels::DeviceGraph::begin_capture(gpu.stream(), early_starts);
    for (int layer = 0; layer < kLayers; ++layer) {
        for (std::size_t i = 0; i < ops.size(); ++i)
            if (i != left_out) ops[i].launch(layer);
    }
    const Result<kernels::DeviceGraph> graph = kernels::DeviceGraph::end_capture(gpu.stream());
    if (!graph) throw std::runtime_error(graph.error().message);
    return 1e6 * gpu.median_seconds([&](int) { graph->launch(gpu.stream()); });
}

// For each op: its time alone, by events in the step, and the time that the graph saves without it.
Json measure_step(GpuMeter& gpu, const GpuModelSizes& sizes, std::int64_t num_requests) {
    using enum kernels::DeviceGraph::EarlyStarts;
    Layer layer(gpu, sizes, num_requests);
    const std::vector<LaunchedOp> ops = layer.ops();
    const std::vector<double> in_step_us = times_in_step(gpu, ops);
    const double step_us = 1e6 * gpu.median_seconds([&](int) {
        for (int index = 0; index < kLayers; ++index) {
            for (const LaunchedOp& op : ops) op.launch(index);
        }
    });
    const double in_order_us = graph_us(gpu, ops, std::nullopt, kNone);
    const double in_graph_us = graph_us(gpu, ops, std::nullopt, kAllowed);
    double alone_us = 0;
    double bytes = 0;
    Json rows = Json::array();
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const double us =
            1e6 * gpu.median_seconds([&](int number) { ops[i].launch(number % kLayers); });
        const double without_us = graph_us(gpu, ops, i, kAllowed);
        rows.push_back(
            {{"what", ops[i].what},
             {"least_us", 1e6 * ops[i].bytes / gpu.limits().copy_bytes_s},
             {"in_step_us", in_step_us[i] / kLayers},
             {"in_graph_us", (in_graph_us - without_us) / kLayers},
             {"alone_us", us}}
        );
        alone_us += kLayers * us;
        bytes += kLayers * ops[i].bytes;
    }
    const double least_us = 1e6 * bytes / gpu.limits().copy_bytes_s;
    std::printf(
        "%s, %d layers of a step of %lld: %.1f us; as a graph %.1f us, with early starts %.1f us; "
        "its kernels alone %.1f us, their bytes %.1f us\n",
        sizes.name,
        kLayers,
        static_cast<long long>(num_requests),
        step_us,
        in_order_us,
        in_graph_us,
        alone_us,
        least_us
    );
    for (const Json& row : rows) {
        std::printf(
            "  %-18s bytes %6.1f us, alone %6.1f, in the graph %6.1f\n",
            row["what"].get<std::string>().c_str(),
            row["least_us"].get<double>(),
            row["alone_us"].get<double>(),
            row["in_graph_us"].get<double>()
        );
    }
    const std::string requests = std::to_string(num_requests) + " requests";
    return {
        {"step", std::string(sizes.name) + ", " + std::to_string(kLayers) + " layers, " + requests},
        {"launches", ops.size() * kLayers},
        {"step_us", step_us},
        {"graph_us", in_order_us},
        {"early_us", in_graph_us},
        {"alone_us", alone_us},
        {"least_us", least_us},
        {"ops", rows}};
}

}  // namespace

Json measure_gaps(GpuMeter& gpu) {
    Json steps = Json::array();
    const auto add = [&](const GpuModelSizes& sizes, std::int64_t num_requests) {
        steps.push_back(measure_step(gpu, sizes, num_requests));
        std::fflush(stdout);
    };
    add(kQwen3_0_6b, 1);
    add(kQwen3_8b, 1);
    if constexpr (kScaledDown > 1) return steps;  // a GPU in software would take minutes
    for (const std::int64_t num_requests : {8, 32, 256}) add(kQwen3_8b, num_requests);
    return steps;
}

}  // namespace pitstop::kernels::bench
