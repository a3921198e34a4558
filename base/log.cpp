#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <iterator>
#include <memory>
#include <utility>

namespace pitstop {
namespace {

// Implements the pattern's flag %*: the message in printable form.
class PrintableMessage : public spdlog::custom_flag_formatter {
  public:
    void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out)
        override {
        const std::string text = printable({message.payload.data(), message.payload.size()});
        out.append(text.data(), text.data() + text.size());
    }
    [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
        return std::make_unique<PrintableMessage>();
    }
};

}  // namespace

std::string printable(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f) {
            shown += c;
        } else {
            fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte);
        }
    }
    return shown;
}

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
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<PrintableMessage>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e %-7l %n: %*");
    logger->set_formatter(std::move(formatter));
    logger->set_level(parsed);
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    return Ok{};
}

}  // namespace pitstop
