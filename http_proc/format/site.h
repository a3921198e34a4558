// Decides whether a request may come from a web page of another site. Without a key nothing else
// distinguishes such a page from a program of this machine's user: a browser sends a page's
// requests to any address that it can reach, this machine's included.
//
// Two kinds of pages are refused. The first kind calls another origin: browsers report that in
// Origin or Sec-Fetch-Site. The second kind has a name that was made to resolve to this machine
// (DNS rebinding), so that the browser sees one origin. Its name is in Host. A literal address
// cannot be such a name, and localhost is always this machine, so these are accepted at any port;
// other names only if allowed.
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

// Returns in words, for the sender, why the request may come from such a page; or nothing. `access`
// is that of the called route. For requests without a key (has_key).
[[nodiscard]] std::optional<std::string> problem_of_site(
    const Request& request, Access access, const SiteRules& rules
);

}  // namespace pitstop::http
