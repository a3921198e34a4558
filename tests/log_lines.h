// The lines of the process's log, for tests of warnings.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <memory>
#include <sstream>
#include <string>

namespace pitstop::test {

// The log's lines while this exists.
class LogLines {
  public:
    LogLines() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_)); }
    ~LogLines() { spdlog::set_default_logger(before_); }
    LogLines(const LogLines&) = delete;
    LogLines& operator=(const LogLines&) = delete;
    [[nodiscard]] std::size_t num_of(const std::string& text) const {
        const std::string lines = lines_.str();
        std::size_t num = 0;
        for (std::size_t at = lines.find(text); at != std::string::npos;
             at = lines.find(text, at + 1))
            ++num;
        return num;
    }

  private:
    std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
    std::ostringstream lines_{};
    std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ =
        std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_);
};

}  // namespace pitstop::test
