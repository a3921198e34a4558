// The lines of /metrics: a writer of the text format, and the labels of a replica.
#pragma once

#include "http_proc/server/request_metrics.h"
#include "messages/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http::metrics {

// Escapes the value of a label.
[[nodiscard]] std::string escaped(std::string_view value);

// Writes lines of the format. A metric's HELP and TYPE precede its first sample.
class Writer {
  public:
    void metric(std::string_view name, std::string_view type, std::string_view help);
    void sample(std::string_view labels, double value) { line("", labels, value); }
    void histogram(std::string_view labels, const Histogram& histogram);
    [[nodiscard]] std::string take() { return std::move(text_); }

  private:
    void line(std::string_view suffix, std::string_view labels, double value);

    std::string text_{};
    std::string_view name_{};
};

// A replica's labels in vLLM's metrics and in pitstop's own.
[[nodiscard]] std::string vllm_labels(
    std::string_view model, const messages::ReplicaStatus& replica
);
[[nodiscard]] std::string own_labels(
    std::string_view model, const messages::ReplicaStatus& replica
);

[[nodiscard]] inline double number(std::int64_t value) { return static_cast<double>(value); }

}  // namespace pitstop::http::metrics
