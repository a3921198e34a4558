// Decides which key may call which route. Source: SGLang's table of keys and route classes.
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
    kAdmin,  // pause, weights, memory, aborting other clients' requests, shutdown
};
[[nodiscard]] std::string_view name_of(Access access);

struct Keys {
    std::string api{};    // empty: none
    std::string admin{};  // empty: none

    // Compares in a time that does not depend on where the texts differ.
    static bool is_equal(std::string_view given, std::string_view key);
};

// Refuses a key that no request can send, which would admit nobody, and an empty key, which would
// admit everybody. `flag` and `variable` name the key's source.
[[nodiscard]] Result<> check_key(
    std::string_view key, std::string_view flag, std::string_view variable
);

// Returns whether the request has one of the keys. Then somebody gave its sender the key, so it is
// not from a web page that guesses the address.
[[nodiscard]] bool has_key(const Request& request, const Keys& keys);

// The routes that a request's key may call.
enum class Grant {
    kNone,   // no key, or a wrong one: open routes only
    kData,   // data routes
    kAdmin,  // everything
};

// Reads the key of "Authorization: Bearer K" (the scheme in any case) or "x-api-key: K".
[[nodiscard]] Grant grant_of(const Request& request, const Keys& keys);

[[nodiscard]] inline bool may(Grant grant, Access access) {
    return access == Access::kOpen || grant == Grant::kAdmin ||
           (access == Access::kData && grant == Grant::kData);
}

}  // namespace pitstop::http
