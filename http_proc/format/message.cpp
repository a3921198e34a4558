#include "http_proc/format/message.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace pitstop::http {
namespace {

std::optional<int> hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return std::nullopt;
}

enum class Plus { kIsPlus, kIsSpace };  // in a query, "+" is a space

std::optional<std::string> percent_decoded(std::string_view text, Plus plus) {
    std::string decoded;
    decoded.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        if (c == '%') {
            if (i + 2 >= text.size()) return std::nullopt;
            const auto high = hex_digit(text[i + 1]);
            const auto low = hex_digit(text[i + 2]);
            if (!high || !low) return std::nullopt;
            c = static_cast<char>(*high * 16 + *low);
            if (c == '\0') return std::nullopt;
            i += 2;
        } else if (c == '+' && plus == Plus::kIsSpace) {
            c = ' ';
        }
        decoded.push_back(c);
    }
    return decoded;
}

bool parse_query(std::string_view text, Request& request) {
    while (!text.empty()) {
        const std::string_view pair = text.substr(0, text.find('&'));
        text.remove_prefix(std::min(text.size(), pair.size() + 1));
        if (pair.empty()) continue;
        const std::size_t equals = std::min(pair.find('='), pair.size());
        auto name = percent_decoded(pair.substr(0, equals), Plus::kIsSpace);
        auto value = percent_decoded(
            equals < pair.size() ? pair.substr(equals + 1) : std::string_view{}, Plus::kIsSpace
        );
        if (!name || !value) return false;
        request.query.emplace_back(*std::move(name), *std::move(value));
    }
    return true;
}

}  // namespace

std::optional<std::string_view> Request::header(std::string_view name) const {
    for (const Header& header : headers) {
        if (header.name == name) return header.value;
    }
    return std::nullopt;
}

std::optional<std::string_view> Request::query_value(std::string_view name) const {
    for (const auto& [key, value] : query) {
        if (key == name) return value;
    }
    return std::nullopt;
}

bool is_json(const Request& request) {
    constexpr std::string_view kJson = "application/json";
    const std::string_view type = request.header("content-type").value_or("");
    const std::string_view essence = type.substr(0, type.find_first_of("; \t"));
    return std::ranges::equal(essence, kJson, [](char given, char wanted) {
        return (given >= 'A' && given <= 'Z' ? given - 'A' + 'a' : given) == wanted;
    });
}

bool parse_target(std::string_view target, Request& request) {
    if (target == "*") {
        request.path = "*";
        return true;
    }
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!target.starts_with(scheme)) continue;
        target.remove_prefix(scheme.size());
        request.authority = target.substr(0, target.find_first_of("/?"));
        if (request.authority.empty()) return false;
        target.remove_prefix(request.authority.size());
        if (target.empty()) target = "/";
    }
    if (!target.starts_with('/') && !target.starts_with('?')) return false;
    const bool has_control = std::ranges::any_of(target, [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    });
    if (has_control) return false;
    target = target.substr(0, target.find('#'));
    const std::string_view path = target.substr(0, target.find('?'));
    auto decoded = percent_decoded(path, Plus::kIsPlus);
    if (!decoded) return false;
    request.path = decoded->empty() ? "/" : *std::move(decoded);
    if (path.size() == target.size()) return true;
    return parse_query(target.substr(path.size() + 1), request);
}

Response Response::streamed() {
    Response response;
    response.is_streamed = true;
    return response;
}

Response Response::empty(int status) {
    Response response;
    response.status = status;
    return response;
}

Response Response::text(int status, std::string body) {
    Response response;
    response.status = status;
    response.content_type = "text/plain; charset=utf-8";
    response.body = std::move(body);
    return response;
}

Response Response::json(int status, const nlohmann::ordered_json& body) {
    // An error may quote bytes of a client that are not UTF-8; such bytes become U+FFFD.
    return json_text(
        status, body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
    );
}

Response Response::json_text(int status, std::string body) {
    Response response;
    response.status = status;
    response.content_type = "application/json";
    response.body = std::move(body);
    return response;
}

std::string_view reason_phrase(int status) {
    struct Phrase {
        int status = 0;
        std::string_view text{};
    };
    static constexpr std::array kPhrases{
        Phrase{100, "Continue"},
        Phrase{200, "OK"},
        Phrase{204, "No Content"},
        Phrase{400, "Bad Request"},
        Phrase{401, "Unauthorized"},
        Phrase{403, "Forbidden"},
        Phrase{404, "Not Found"},
        Phrase{405, "Method Not Allowed"},
        Phrase{408, "Request Timeout"},
        Phrase{409, "Conflict"},
        Phrase{411, "Length Required"},
        Phrase{413, "Content Too Large"},
        Phrase{414, "URI Too Long"},
        Phrase{415, "Unsupported Media Type"},
        Phrase{417, "Expectation Failed"},
        Phrase{422, "Unprocessable Content"},
        Phrase{429, "Too Many Requests"},
        Phrase{431, "Request Header Fields Too Large"},
        Phrase{500, "Internal Server Error"},
        Phrase{501, "Not Implemented"},
        Phrase{503, "Service Unavailable"},
        Phrase{504, "Gateway Timeout"},
        Phrase{505, "HTTP Version Not Supported"},
    };
    for (const Phrase& phrase : kPhrases) {
        if (phrase.status == status) return phrase.text;
    }
    return "Unknown";
}

bool is_header_value(std::string_view value) {
    return std::ranges::none_of(value, [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
    });
}

}  // namespace pitstop::http
