#include "bench/report.h"

#include "bench/machine.h"
#include "bench/text_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pitstop::bench {
namespace {

constexpr double kMebibyte = 1048576.0;

double per_second(std::int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

double per_step_us(const Report& report, double seconds) {
    return report.steps > 0 ? seconds * 1e6 / static_cast<double>(report.steps) : 0;
}

Json figures_json(const Report& report) {
    const Metrics& m = report.metrics;
    Json figures = {
        {"seconds", m.seconds},
        {"requests_ok", m.num_ok},
        {"errors", m.errors},
        {"prompt_tokens", m.prompt_tokens},
        {"cached_tokens", m.cached_tokens},
        {"output_tokens", m.output_tokens},
        {"requests_per_s", per_second(m.num_ok, m.seconds)},
        {"output_tokens_per_s", per_second(m.output_tokens, m.seconds)},
        {"total_tokens_per_s", per_second(m.prompt_tokens + m.output_tokens, m.seconds)},
        {"first_token_ms", json_of(m.first_token_ms)},
        {"inter_token_ms", json_of(m.gap_ms)},
        {"largest_gap_ms", json_of(m.gap_largest_ms)},
        {"request_ms", json_of(m.request_ms)},
        {"steps", report.steps},
        {"output_tokens_per_step",
         report.steps > 0 ? static_cast<double>(m.output_tokens) / static_cast<double>(report.steps)
                          : 0.0},
        {"us_per_step", per_step_us(report, m.seconds)},
    };
    if (m.decode) {
        figures["decode"] = {
            {"seconds", m.decode->seconds},
            {"tokens", m.decode->tokens},
            {"tokens_per_s", per_second(m.decode->tokens, m.decode->seconds)},
            {"context_mean", m.decode->context_mean},
        };
    }
    return figures;
}

}  // namespace

std::vector<Bounded> bounded_figures(const Report& report) {
    std::vector<Bounded> figures;
    const Metrics& m = report.metrics;
    if (!report.cost || !report.limits || m.errors.size() > 0 || m.num_ok == 0) return figures;
    const double batch = static_cast<double>(m.num_ok);
    if (m.decode) {
        const double step_s =
            decode_step_seconds_min(*report.cost, *report.limits, batch, m.decode->context_mean);
        figures.push_back(
            {.name = "decode tokens/s",
             .value = per_second(m.decode->tokens, m.decode->seconds),
             .limit = batch / step_s,
             .bound_by = fmt::format(
                 "weights and KV of {:.0f} rows of {:.0f} tokens read once per step, or its "
                 "products",
                 batch,
                 m.decode->context_mean
             )}
        );
    }
    if (report.mode == "stream" && m.first_token_ms.count > 0) {
        const double tokens = static_cast<double>(m.prompt_tokens - m.cached_tokens) / batch;
        const double prefill_s = prefill_seconds_min(*report.cost, *report.limits, tokens);
        figures.push_back(
            {.name = "prefill tokens/s",
             .value = tokens / (m.first_token_ms.p50 * 1e-3),
             .limit = tokens / prefill_s,
             .bound_by = fmt::format("the products of a prompt of {:.0f} tokens", tokens)}
        );
        const double context = (static_cast<double>(m.prompt_tokens) / batch) +
                               static_cast<double>(m.output_tokens) / batch / 2;
        const double step_s = decode_step_seconds_min(*report.cost, *report.limits, 1, context);
        if (m.gap_ms.count > 0) {
            figures.push_back(
                {.name = "decode tokens/s",
                 .value = 1e3 / m.gap_ms.mean,
                 .limit = 1 / step_s,
                 .bound_by = fmt::format(
                     "weights and KV of one row of {:.0f} tokens read once per step", context
                 )}
            );
        }
    }
    return figures;
}

Json report_json(const Report& report) {
    Json root = report_head("pitstop_bench", report.command);
    root["mode"] = report.mode;
    root["machine"]["device"] = report.device;
    if (report.limits) {
        root["limits"] = {
            {"threads", report.limits->threads},
            {"read_bytes_per_s", report.limits->read_bytes_per_s},
            {"flops_per_s", report.limits->flops_per_s},
        };
    }
    root["model"] = {{"name", report.model}, {"replicas", report.replicas}, {"tp", report.tp}};
    if (report.cost) root["model"]["weight_bytes_per_step"] = report.cost->weights_read(1);
    root["workload"] = Json::object();
    for (const auto& [key, value] : report.workload) root["workload"][key] = value;
    root["figures"] = figures_json(report);
    root["of_limit"] = Json::array();
    for (const Bounded& figure : bounded_figures(report)) {
        root["of_limit"].push_back({
            {"figure", figure.name},
            {"value", figure.value},
            {"limit", figure.limit},
            {"fraction", figure.value / figure.limit},
            {"bound_by", figure.bound_by},
        });
    }
    if (report.start_up) {
        root["start_up"] = {
            {"ready_s", report.start_up->ready_s},
            {"first_token_s", report.start_up->first_token_s},
        };
    }
    root["processes"] = Json::array();
    for (const ProcessReport& process : report.processes) {
        root["processes"].push_back({
            {"name", process.name},
            {"cpu_s", process.cpu_s},
            {"cpu_us_per_step", per_step_us(report, process.cpu_s)},
            {"peak_bytes", process.peak_bytes},
        });
    }
    return root;
}

namespace {

void add_head(TextLines& lines, const Report& report) {
    const Machine machine = this_machine();
    lines.add(
        "{}: {}, {} x tp {}, on {}",
        report.mode,
        report.model,
        report.replicas,
        report.tp,
        report.device
    );
    lines.add(
        "  machine   {}, {} cores, {:.1f} GiB",
        machine.cpu,
        machine.cores,
        static_cast<double>(machine.memory_bytes) / (1024 * kMebibyte)
    );
    lines.add("  commit    {}", source_commit());
    std::vector<std::string> asked;
    for (const auto& [key, value] : report.workload)
        asked.push_back(fmt::format("{} {}", key, value));
    lines.add("  workload  {}", fmt::join(asked, ", "));
    if (report.limits) {
        lines.add(
            "  limits    reads {:.2f} GB/s, {:.1f} GFLOP/s bf16",
            report.limits->read_bytes_per_s / 1e9,
            report.limits->flops_per_s / 1e9
        );
    }
    if (report.start_up) {
        lines.add(
            "  start-up  ready after {:.3f} s, first token after {:.3f} s",
            report.start_up->ready_s,
            report.start_up->first_token_s
        );
    }
}

void add_figures(TextLines& lines, const Report& report) {
    const Metrics& m = report.metrics;
    lines.add("");
    lines.add("  {:<24}{:>12.3f}", "requests/s", per_second(m.num_ok, m.seconds));
    lines.add("  {:<24}{:>12.1f}", "output tokens/s", per_second(m.output_tokens, m.seconds));
    lines.add(
        "  {:<24}{:>12.1f}",
        "total tokens/s",
        per_second(m.prompt_tokens + m.output_tokens, m.seconds)
    );
    for (const Bounded& figure : bounded_figures(report)) {
        lines.add(
            "  {:<24}{:>12.1f}   {:.1f} % of {:.1f}: {}",
            figure.name,
            figure.value,
            100 * figure.value / figure.limit,
            figure.limit,
            figure.bound_by
        );
    }
    lines.add(
        "  {:<24}{:>12}   {:.1f} us each, {:.1f} output tokens each",
        "steps",
        report.steps,
        per_step_us(report, m.seconds),
        report.steps > 0 ? static_cast<double>(m.output_tokens) / static_cast<double>(report.steps)
                         : 0.0
    );
    lines.add(
        "  {:<24}{:>12}   {} prompt tokens ({} cached), {} output tokens",
        "requests ended well",
        m.num_ok,
        m.prompt_tokens,
        m.cached_tokens,
        m.output_tokens
    );
    for (const auto& [what, count] : m.errors)
        lines.add("  {:<24}{:>12}   {}", "ended in error", count, what);
}

void add_processes(TextLines& lines, const Report& report) {
    lines.add("");
    lines.add("  {:<24}{:>12}{:>16}{:>14}", "process", "CPU s", "CPU us/step", "peak MiB");
    for (const ProcessReport& process : report.processes) {
        lines.add(
            "  {:<24}{:>12.3f}{:>16.1f}{:>14.1f}",
            process.name,
            process.cpu_s,
            per_step_us(report, process.cpu_s),
            static_cast<double>(process.peak_bytes) / kMebibyte
        );
    }
}

}  // namespace

std::string report_table(const Report& report) {
    const Metrics& m = report.metrics;
    TextLines lines(24);
    add_head(lines, report);
    add_figures(lines, report);
    lines.add("");
    lines.add_summary_head();
    lines.add_summary("first token", m.first_token_ms);
    lines.add_summary("between tokens", m.gap_ms);
    lines.add_summary("largest gap of each", m.gap_largest_ms);
    lines.add_summary("whole request", m.request_ms);
    add_processes(lines, report);
    return lines.take();
}

}  // namespace pitstop::bench
