// Decides who may call what. Source: SGLang's table of keys and route classes.
//
// | route | no keys | api key | admin key | both keys        |
// |-------|---------|---------|-----------|------------------|
// | open  | open    | open    | open      | open             |
// | data  | open    | api     | open      | api or admin     |
// | admin | open    | api     | admin     | admin alone      |
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

#include <string>
#include <string_view>

namespace pitstop::http {

enum class Access {
    kOpen,   // health and metrics
    kData,   // generation and information
    kAdmin,  // pause, weights, memory, aborting others, shutdown
};
[[nodiscard]] std::string_view name_of(Access access);

struct Keys {
    std::string api{};    // empty: none
    std::string admin{};  // empty: none

    // Compares in a time that does not depend on where the two differ.
    static bool is_equal(std::string_view given, std::string_view key);
};

// Returns why no request could carry this key, or nothing: it would open nothing to anybody, and an
// empty one would open all to everybody. `flag` and `variable` name what it was given by.
[[nodiscard]] Result<> check_key(
    std::string_view key, std::string_view flag, std::string_view variable
);

// Tells whether the request carries one of the keys: then its sender was told it, and is no
// stranger's page.
[[nodiscard]] bool has_key(const Request& request, const Keys& keys);

// Says what a request's key opens.
enum class Grant {
    kNone,   // no key, or a wrong one: open routes alone
    kData,   // data routes
    kAdmin,  // everything
};

// The key is that of "Authorization: Bearer K" (the scheme in any case) or "x-api-key: K".
[[nodiscard]] Grant grant_of(const Request& request, const Keys& keys);

[[nodiscard]] inline bool may(Grant grant, Access access) {
    return access == Access::kOpen || grant == Grant::kAdmin ||
           (access == Access::kData && grant == Grant::kData);
}

}  // namespace pitstop::http
