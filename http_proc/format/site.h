// Tells whether a request may be a web page's of another site. Without a key nothing else tells
// such a page from a program of this machine's user: a browser sends what a page asks for to any
// address that the browser can reach, this machine's own included.
//
// Two ways in are shut. A page that asks another origin: browsers say so in Origin or
// Sec-Fetch-Site. A page whose own name was made to resolve to this machine (DNS rebinding), whose
// requests are of its own origin: its name is in Host. No name is behind a literal address, and
// none but this machine behind localhost, so these are taken at any port; of other names those that
// were allowed.
//
// Source: WHATWG Fetch (Origin), W3C Fetch Metadata (Sec-Fetch-Site), RFC 9112 3.2 (Host), RFC 6761
// 6.3 (localhost).
#pragma once

#include "base/result.h"
#include "http_proc/format/keys.h"
#include "http_proc/format/message.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct SiteRules {
    std::vector<std::string> allowed_hosts{};  // "name"; ".name": all below it; "*": any
    std::string cors_origin{};                 // pages of this origin may call; empty: none
};

// Errors: kInvalidArgument for an entry that no Host can match.
[[nodiscard]] Result<> check_site_rules(const SiteRules& rules);

// Says in words for its sender why the request may be such a page's; nothing: it is none. `access`
// is that of the route that it asks for. It is for requests without a key (has_key).
[[nodiscard]] std::optional<std::string> problem_of_site(
    const Request& request, Access access, const SiteRules& rules
);

}  // namespace pitstop::http
