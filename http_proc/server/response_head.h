// Formats the head of a response. Source: RFC 9112, RFC 9110.
#pragma once

#include "http_proc/format/message.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

// Decisions of the connection about a response.
struct ResponseFraming {
    std::optional<std::size_t> length{};  // of the body; absent: the body is streamed
    bool is_http_1_0 = false;             // the body is not chunked
    bool closes = false;                  // close the connection after the response
    std::string_view cors_origin{};       // empty: no origin may call
};

// REQUIRES: the headers' values are header values (is_header_value()).
[[nodiscard]] std::string response_head(const Response& response, const ResponseFraming& framing);

}  // namespace pitstop::http
