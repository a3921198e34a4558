// Writes a report for people, line by line.
#pragma once

#include "bench/metrics.h"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::bench {

class TextLines {
  public:
    // `name_width` is that of the first column of the summaries' table.
    explicit TextLines(int name_width) : name_width_(name_width) {}

    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
        text_ += '\n';
    }
    // Adds the header line of a table of summaries, in milliseconds.
    void add_summary_head() {
        add("  {:<{}}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "milliseconds",
            name_width_,
            "count",
            "mean",
            "p50",
            "p90",
            "p99",
            "max");
    }
    // Adds a row to that table; nothing for an empty summary.
    void add_summary(std::string_view name, const Summary& s) {
        if (s.count == 0) return;
        add("  {:<{}}{:>9}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}",
            name,
            name_width_,
            s.count,
            s.mean,
            s.p50,
            s.p90,
            s.p99,
            s.max);
    }
    [[nodiscard]] std::string take() { return std::move(text_); }

  private:
    int name_width_;
    std::string text_{};
};

}  // namespace pitstop::bench
