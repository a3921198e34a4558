// Decides whether a request may come from a web page of another site. A browser sends a page's
// requests to any address that it can reach, including this machine's. Without a key, only this
// check distinguishes such a page from a program of this machine's user.
//
// Two kinds of pages are refused. A page of the first kind calls another origin: browsers report
// that in Origin or Sec-Fetch-Site. A page of the second kind has a name that its owner made
// resolve to this machine (DNS rebinding), so the browser sees one origin; Host has the name. A
// literal address is no such name, and localhost is always this machine: both are accepted, at any
// port. Other names are accepted only if allowed.
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
    std::vector<std::string> allowed_hosts{};  // "name"; ".name": all names below it; "*": any name
    std::string cors_origin{};                 // pages of this origin may call; empty: none may
};

// Errors: kInvalidArgument for an entry that no Host could match.
[[nodiscard]] Result<> check_site_rules(const SiteRules& rules);

// Returns why the request may come from a page of another site, in words for the sender, or
// nothing. `access`: the called route's. Only for requests without a key (has_key()).
[[nodiscard]] std::optional<std::string> problem_of_site(
    const Request& request, Access access, const SiteRules& rules
);

}  // namespace pitstop::http
