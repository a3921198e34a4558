// Times ops one after another, each as a fraction of the machine's limits.
#pragma once

#include "base/time.h"
#include "bench/machine_limits.h"
#include "kernels/ops.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pitstop::bench {

// Owns 64-byte aligned memory of small random numbers.
template <class T>
class Array {
  public:
    explicit Array(std::int64_t size)
        : size_(size),
          data_(static_cast<T*>(std::aligned_alloc(
              64,
              static_cast<std::size_t>((size * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64)
          ))) {
        CHECK(data_ != nullptr);
        std::uint32_t state = 12345;
        for (std::int64_t i = 0; i < size; ++i) {
            state = state * 1664525u + 1013904223u;
            const float x =
                static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;  // [-1, 1)
            if constexpr (std::is_same_v<T, bf16>) {
                data_.get()[i] = to_bf16(x);
            } else {
                data_.get()[i] = static_cast<T>(x);
            }
        }
    }
    [[nodiscard]] T* data() const { return data_.get(); }
    [[nodiscard]] std::int64_t size() const { return size_; }

  private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::int64_t size_;
    std::unique_ptr<T, Free> data_;
};

struct Measurement {
    std::string name{};
    double bytes = 0.0;  // the bytes that must move
    double flops = 0.0;
    bool is_bf16 = false;  // the flops are products of bf16
    std::function<void()> run{};
};

class Bench {
  public:
    Bench(
        const kernels::Ops& ops_in,
        kernels::ThreadPool& pool,
        const MachineLimits& limits,
        std::string filter,
        double min_ms,
        bool as_json
    )
        : ops(ops_in),
          stream(kernels::stream_of(pool)),
          limits_(limits),
          filter_(std::move(filter)),
          min_ms_(min_ms),
          as_json_(as_json) {
        if (!as_json_)
            fmt::print(
                "{:<44} {:>11} {:>9} {:>11} {:>7} {:>8}\n",
                "op",
                "us",
                "GB/s",
                "GFLOP/s",
                "bound",
                "of limit"
            );
    }

    [[nodiscard]] bool wants(const std::string& name) const {
        return name.find(filter_) != std::string::npos;
    }

    void measure(const Measurement& m) {
        if (!wants(m.name)) return;
        m.run();
        std::vector<double> samples;
        const TimePoint begin = Clock::now();
        const Duration budget =
            std::chrono::microseconds(static_cast<std::int64_t>(min_ms_ * 1000.0));
        while (samples.size() < 5 || Clock::now() - begin < budget) {
            const TimePoint before = Clock::now();
            m.run();
            samples.push_back(seconds(Clock::now() - before));
        }
        std::sort(samples.begin(), samples.end());
        const double seconds = samples[samples.size() / 2];
        const double byte_seconds = m.bytes / (limits_.read_gb_s * 1e9);
        const double flop_seconds =
            m.flops / ((m.is_bf16 ? limits_.bf16_gflop_s : limits_.fma_gflop_s) * 1e9);
        const double fraction = std::max(byte_seconds, flop_seconds) / seconds;
        const char* const bound = byte_seconds >= flop_seconds ? "bytes" : "flops";
        if (as_json_) {
            rows.push_back(
                {{"op", m.name},
                 {"us", seconds * 1e6},
                 {"us_min", samples.front() * 1e6},
                 {"gb_s", m.bytes / seconds * 1e-9},
                 {"gflop_s", m.flops / seconds * 1e-9},
                 {"bound", bound},
                 {"of_limit", fraction}}
            );
        } else {
            fmt::print(
                "{:<44} {:>11.1f} {:>9.1f} {:>11.1f} {:>7} {:>7.1f}%\n",
                m.name,
                seconds * 1e6,
                m.bytes / seconds * 1e-9,
                m.flops / seconds * 1e-9,
                bound,
                fraction * 100.0
            );
            std::fflush(stdout);
        }
    }

    const kernels::Ops& ops;
    kernels::Stream stream;
    nlohmann::json rows = nlohmann::json::array();

  private:
    MachineLimits limits_;
    std::string filter_;
    double min_ms_;
    bool as_json_;
};

}  // namespace pitstop::bench
