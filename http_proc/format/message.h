// Describes an HTTP request as a handler sees it, and the answer it gives.
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
    std::string authority{};  // of an absolute target: it counts in place of Host
    std::string rest{};       // what a route that ends with "/*" left of the path
    std::vector<std::pair<std::string, std::string>> query{};  // decoded, in order
    std::vector<Header> headers{};
    std::string body{};

    // Returns the first with that name (lower case); nothing: there is none.
    [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
    [[nodiscard]] std::optional<std::string_view> query_value(std::string_view name) const;
};

// Tells whether the content type is application/json, as OpenAI's routes demand: a page of another
// site can send anything else without asking.
[[nodiscard]] bool is_json(const Request& request);

// Takes a request target apart: origin form ("/path?query"), absolute form ("http://host/path") and
// "*". Returns false if it is none of these, or has a bad escape or a control character.
[[nodiscard]] bool parse_target(std::string_view target, Request& request);

struct Response {
    int status = 200;
    std::string content_type{};  // empty: no body
    std::string body{};
    std::vector<Header> headers{};  // besides those that the server writes itself
    bool is_streamed = false;       // it was sent by Exchange::write already

    // A handler that has streamed its answer returns this.
    static Response streamed();
    static Response empty(int status);  // Content-Length: 0
    static Response text(int status, std::string body);
    static Response json(int status, const nlohmann::ordered_json& body);
    static Response json_text(int status, std::string body);  // already JSON
};

[[nodiscard]] std::string_view reason_phrase(int status);

// Tells whether a value may stand in a header: it has no control character, so that nothing a
// client sent can end a line of an answer.
[[nodiscard]] bool is_header_value(std::string_view value);

}  // namespace pitstop::http
