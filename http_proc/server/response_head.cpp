#include "http_proc/server/response_head.h"

#include "base/check.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace pitstop::http {
namespace {

// Formats the time as IMF-fixdate, RFC 9110 5.6.7.
std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 40> text{};
    const std::size_t length =
        std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    return {text.data(), length};
}

}  // namespace

std::string response_head(const Response& response, const ResponseFraming& framing) {
    std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\nDate: {}\r\nServer: pitstop\r\n",
        response.status,
        reason_phrase(response.status),
        http_date()
    );
    if (!response.content_type.empty())
        head += fmt::format("Content-Type: {}\r\n", response.content_type);
    if (framing.length && response.status != 204)
        head += fmt::format("Content-Length: {}\r\n", *framing.length);
    if (!framing.length && !framing.is_http_1_0) head += "Transfer-Encoding: chunked\r\n";
    if (framing.closes) {
        head += "Connection: close\r\n";
    } else if (framing.is_http_1_0) {
        head += "Connection: keep-alive\r\n";
    }
    if (!framing.cors_origin.empty())
        head += fmt::format("Access-Control-Allow-Origin: {}\r\n", framing.cors_origin);
    for (const Header& header : response.headers) {
        CHECK(is_header_value(header.value));  // callers check values that quote bytes of a client
        head += fmt::format("{}: {}\r\n", header.name, header.value);
    }
    return head + "\r\n";
}

}  // namespace pitstop::http
