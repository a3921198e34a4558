// An HTTP request as a handler receives it, and a handler's answer.
//
// Source: RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {

struct Header {
    std::string name{};  // in lower case
    std::string value{};
};

struct Request {
    std::string method{};     // as sent: methods are case-sensitive
    std::string path{};       // without the query, percent-decoded
    std::string authority{};  // the host of an absolute target: replaces the Host header
    std::string rest{};       // the part of the path that "/*" of the route matched
    std::vector<std::pair<std::string, std::string>> query{};  // decoded, in order
    std::vector<Header> headers{};
    std::string body{};

    // Returns the first header with that name (lower case), or nothing.
    [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
    [[nodiscard]] std::optional<std::string_view> query_value(std::string_view name) const;
};

// Returns whether the content type is application/json, as OpenAI's routes require. A web page of
// another site can send other content types without asking permission.
[[nodiscard]] bool is_json(const Request& request);

// Parses a request target: origin form ("/path?query"), absolute form ("http://host/path") or "*".
// Returns false for anything else, a bad escape or a control character.
[[nodiscard]] bool parse_target(std::string_view target, Request& request);

struct Response {
    int status = 200;
    std::string content_type{};  // empty: no body
    std::string body{};
    std::vector<Header> headers{};  // sent in addition to the server's own headers
    bool is_streamed = false;       // Exchange::write has sent it already

    // The return value of a handler that has streamed its answer.
    static Response streamed();
    static Response empty(int status);  // Content-Length: 0
    static Response text(int status, std::string body);
    static Response json(int status, const nlohmann::ordered_json& body);
    static Response json_text(int status, std::string body);  // `body` is already JSON
};

[[nodiscard]] std::string_view reason_phrase(int status);

// Returns whether a value may be sent in a header: it has no control characters, so nothing that a
// client sent can end a line of an answer.
[[nodiscard]] bool is_header_value(std::string_view value);

}  // namespace pitstop::http
