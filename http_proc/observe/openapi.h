// Describes all routes as an OpenAPI 3.1 document. The table of routes and the parsers themselves
// (route_probe.h) are its only sources.
#pragma once

#include "base/result.h"
#include "http_proc/server/router.h"
#include "http_proc/server/server_context.h"

#include <functional>
#include <future>
#include <string>
#include <string_view>

namespace pitstop::http {

// Takes about a second of a core. `options` are the server's.
[[nodiscard]] std::string openapi_document(
    const Router& router, const ServerOptions& options, std::string_view version
);

// Makes a text on a thread of its own, while the loop goes on, unless it is being made or is made.
// If `make` throws, the text is an error, and the next call tries again.
void make_once(std::shared_future<Result<std::string>>& text, std::function<std::string()> make);
[[nodiscard]] bool is_made(const std::shared_future<Result<std::string>>& text);

}  // namespace pitstop::http
