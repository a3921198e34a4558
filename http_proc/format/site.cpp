#include "http_proc/format/site.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <netinet/in.h>

namespace pitstop::http {
namespace {

constexpr std::size_t kHostBytesMax = 253;  // RFC 1035 2.3.4, as text
constexpr std::size_t kShownBytesMax = 80;

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool is_same(std::string_view left, std::string_view right) {
    return std::ranges::equal(left, right, [](char a, char b) { return lower(a) == lower(b); });
}

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() > end.size() && is_same(text.substr(text.size() - end.size()), end);
}

struct Authority {
    std::string_view host{};  // an IPv6 literal keeps its brackets
    std::string_view port{};  // empty: the default of the scheme
};

// Parses the "host:port" of Host, an origin or an absolute target; nothing if it is malformed.
std::optional<Authority> authority_of(std::string_view text) {
    const std::size_t bracket = text.starts_with('[') ? text.find(']') : 0;
    if (bracket == std::string_view::npos) return std::nullopt;
    const std::size_t colon = std::min(text.find(':', bracket), text.size());
    const Authority authority{text.substr(0, colon), text.substr(std::min(colon + 1, text.size()))};
    const bool is_number =
        std::ranges::all_of(authority.port, [](char c) { return c >= '0' && c <= '9'; });
    if (authority.host.empty() || !is_number) return std::nullopt;
    return authority;
}

bool is_literal_address(std::string_view host) {
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
        host = host.substr(0, host.find('%'));  // drops the zone of an IPv6 address
        ::in6_addr address{};
        return ::inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
    }
    ::in_addr address{};
    return ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

bool matches(std::string_view host, std::string_view allowed) {
    if (allowed == "*") return true;
    return allowed.starts_with('.') ? ends_with(host, allowed) : is_same(host, allowed);
}

bool may_be_asked_for(std::string_view host, const SiteRules& rules) {
    if (is_literal_address(host)) return true;
    if (host.ends_with('.')) host.remove_suffix(1);  // drops the dot of the root domain
    if (is_same(host, "localhost") || ends_with(host, ".localhost")) return true;
    return std::ranges::any_of(rules.allowed_hosts, [&](const std::string& allowed) {
        return matches(host, allowed);
    });
}

// Returns whether a page of `origin` is this server's own page, which `host` names. TLS proxies
// pass the Host header on.
bool is_own_origin(std::string_view origin, std::string_view host) {
    struct Scheme {
        std::string_view prefix{};
        std::string_view port{};
    };
    for (const Scheme scheme : {Scheme{"http://", "80"}, Scheme{"https://", "443"}}) {
        if (!origin.starts_with(scheme.prefix)) continue;
        const auto page = authority_of(origin.substr(scheme.prefix.size()));
        const auto own = authority_of(host);
        if (!page || !own) return false;
        const auto port_of = [&](const Authority& authority) {
            return authority.port.empty() ? scheme.port : authority.port;
        };
        return is_same(page->host, own->host) && port_of(*page) == port_of(*own);
    }
    return false;  // "null", a file or a browser extension
}

std::string in_quotes(std::string_view text) {
    return fmt::format("'{}'", utf8_prefix(text, kShownBytesMax));
}

}  // namespace

Result<> check_site_rules(const SiteRules& rules) {
    for (const std::string& allowed : rules.allowed_hosts) {
        const bool is_name = std::ranges::all_of(allowed, [](unsigned char c) {
            return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
        });
        if (allowed == "*") continue;
        if (is_name && !allowed.empty() && allowed != "." && allowed.size() <= kHostBytesMax &&
            !allowed.ends_with('.'))
            continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "--allowed-host is {}; accepted are a name without a port (node7), all names below a "
            "domain (.cluster.local), and * for any",
            in_quotes(allowed)
        );
    }
    return Ok{};
}

std::optional<std::string> problem_of_site(
    const Request& request, Access access, const SiteRules& rules
) {
    // The target's authority replaces Host (RFC 9112 3.2.2). Requests of HTTP/1.0 may have neither;
    // no browser sends such a request.
    std::optional<std::string_view> host = request.header("host");
    if (!request.authority.empty()) host = request.authority;
    if (host) {
        const auto authority = authority_of(*host);
        if (!authority || !may_be_asked_for(authority->host, rules)) {
            return fmt::format(
                "the host {} is not served without a key; accepted are IP addresses, localhost, "
                "and names given with --allowed-host",
                in_quotes(*host)
            );
        }
    }
    bool is_of_own_page = false;      // the browser says that the page is this server's
    bool is_of_allowed_page = false;  // the operator has allowed the page's origin
    for (const Header& header : request.headers) {
        if (header.name != "origin") continue;
        const bool is_allowed =
            !rules.cors_origin.empty() &&
            (rules.cors_origin == "*" || is_same(header.value, rules.cors_origin));
        is_of_allowed_page = is_of_allowed_page || is_allowed;
        is_of_own_page = true;
        if (is_allowed || is_own_origin(header.value, host.value_or(""))) continue;
        return fmt::format(
            "pages of {} may not call this server without a key; --cors-origin names an origin "
            "that may",
            in_quotes(header.value)
        );
    }
    for (const Header& header : request.headers) {
        if (header.name != "sec-fetch-site") continue;
        is_of_own_page = true;
        // "none" is an action of the user, such as the address bar or a bookmark.
        if (is_same(header.value, "same-origin") || is_same(header.value, "none")) continue;
        if (is_of_allowed_page) continue;
        return fmt::format(
            "a page of another site may not call this server without a key (Sec-Fetch-Site is {})",
            in_quotes(header.value)
        );
    }
    // Over plain HTTP, browsers send Sec-Fetch-Site only to loopback addresses. A GET for an image
    // or a link has no Origin.
    const bool is_read = request.method == "GET" || request.method == "HEAD";
    const bool is_browser = request.header("user-agent").value_or("").starts_with("Mozilla/");
    if (access == Access::kAdmin && is_read && is_browser && !is_of_own_page) {
        return fmt::format(
            "the browser does not say which site's page calls, so {} needs POST or a key",
            request.path
        );
    }
    return std::nullopt;
}

}  // namespace pitstop::http
