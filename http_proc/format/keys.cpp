#include "http_proc/format/keys.h"

#include <algorithm>
#include <cctype>

namespace pitstop::http {
namespace {

std::string_view key_of(const Request& request) {
    constexpr std::string_view kScheme = "bearer ";
    const std::string_view value = request.header("authorization").value_or("");
    const bool is_bearer =
        value.size() >= kScheme.size() &&
        std::equal(kScheme.begin(), kScheme.end(), value.begin(), [](char wanted, char given) {
            return wanted == std::tolower(static_cast<unsigned char>(given));
        });
    if (!is_bearer) return request.header("x-api-key").value_or("");
    const std::string_view key = value.substr(kScheme.size());
    return key.substr(std::min(key.find_first_not_of(' '), key.size()));
}

bool is_key(std::string_view given, const std::string& key) {
    return !key.empty() && Keys::is_equal(given, key);
}

}  // namespace

std::string_view name_of(Access access) {
    switch (access) {
        case Access::kOpen:
            return "open";
        case Access::kData:
            return "data";
        case Access::kAdmin:
            return "admin";
    }
    return "";
}

bool Keys::is_equal(std::string_view given, std::string_view key) {
    // Compares every byte of `key`, whatever was given: the time reveals only the key's length.
    unsigned difference = given.size() == key.size() ? 0 : 1;
    for (std::size_t i = 0; i < key.size(); ++i) {
        const char c = i < given.size() ? given[i] : '\0';
        difference |= static_cast<unsigned>(static_cast<unsigned char>(c ^ key[i]));
    }
    // The volatile keeps compilers from ending the loop at the first difference.
    const volatile unsigned result = difference;
    return result == 0;
}

Result<> check_key(std::string_view key, std::string_view flag, std::string_view variable) {
    std::string_view problem;
    if (key.empty()) {
        problem = "is empty";
    } else if (!is_header_value(key)) {
        problem = "has a control character: a line break, a tab, ...";
    } else if (key.front() == ' ' || key.back() == ' ') {
        problem = "begins or ends with a space";
    } else {
        return Ok{};
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} (environment variable {}) {}; no request could send such a key. Set a key of one line "
        "without spaces around it, or none",
        flag,
        variable,
        problem
    );
}

bool has_key(const Request& request, const Keys& keys) {
    const std::string_view key = key_of(request);
    return is_key(key, keys.api) || is_key(key, keys.admin);
}

Grant grant_of(const Request& request, const Keys& keys) {
    const std::string_view key = key_of(request);
    const bool is_api = is_key(key, keys.api);
    const bool is_admin = is_key(key, keys.admin);
    if (is_admin) return Grant::kAdmin;
    if (keys.admin.empty()) return keys.api.empty() || is_api ? Grant::kAdmin : Grant::kNone;
    return keys.api.empty() || is_api ? Grant::kData : Grant::kNone;
}

}  // namespace pitstop::http
