#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace pitstop {

Result<> init_logging(std::string_view process, std::string_view level) {
    const auto parsed = spdlog::level::from_str(std::string(level));
    if (parsed == spdlog::level::off && level != "off") {
        return make_error(
            ErrorCode::kInvalidArgument,
            "log level '{}' is not one of trace, debug, info, warning, error, off",
            level
        );
    }
    auto logger = std::make_shared<spdlog::logger>(
        std::string(process), std::make_shared<spdlog::sinks::stderr_sink_mt>()
    );
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %-7l %n: %v");
    logger->set_level(parsed);
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    return Ok{};
}

}  // namespace pitstop
