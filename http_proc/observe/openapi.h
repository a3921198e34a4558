// Describes all routes as an OpenAPI 3.1 document. The table of routes and the parsers themselves
// (route_probe.h) are its only sources.
#pragma once

#include "http_proc/server/router.h"
#include "http_proc/server/server_context.h"

#include <string>
#include <string_view>

namespace pitstop::http {

// Takes about a second of a core. `options` are the server's.
[[nodiscard]] std::string openapi_document(
    const Router& router, const ServerOptions& options, std::string_view version
);

}  // namespace pitstop::http
