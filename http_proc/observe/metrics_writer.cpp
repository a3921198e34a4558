#include "http_proc/observe/metrics_writer.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

namespace pitstop::http::metrics {

std::string escaped(std::string_view value) {
    std::string out;
    for (const char c : value) {
        if (c == '\\' || c == '"' || c == '\n') out += '\\';
        out += c == '\n' ? 'n' : c;
    }
    return out;
}

void Writer::metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(
        std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type
    );
}

void Writer::histogram(std::string_view labels, const Histogram& histogram) {
    const std::size_t num_bounds = histogram.bounds().size();
    for (std::size_t i = 0; i <= num_bounds; ++i) {
        const std::string bound =
            i < num_bounds ? fmt::format("{}", histogram.bounds()[i]) : "+Inf";
        line(
            "_bucket",
            fmt::format("{},le=\"{}\"", labels, bound),
            static_cast<double>(histogram.count_up_to(i))
        );
    }
    line("_sum", labels, histogram.sum());
    line("_count", labels, static_cast<double>(histogram.count_up_to(num_bounds)));
}

void Writer::line(std::string_view suffix, std::string_view labels, double value) {
    fmt::format_to(std::back_inserter(text_), "{}{}{{{}}} {}\n", name_, suffix, labels, value);
}

std::string vllm_labels(std::string_view model, const messages::ReplicaStatus& replica) {
    return fmt::format("model_name=\"{}\",engine=\"{}\"", model, raw(replica.replica));
}

std::string own_labels(std::string_view, const messages::ReplicaStatus& replica) {
    return fmt::format("replica=\"{}\"", raw(replica.replica));
}

}  // namespace pitstop::http::metrics
