#include "http_proc/server/router.h"

#include "base/check.h"

#include <fmt/format.h>

namespace pitstop::http {
namespace {

constexpr std::string_view kBelow = "/*";

// Returns whether the list `methods` has the method: "GET, POST" has GET.
bool has_method(std::string_view methods, std::string_view method) {
    while (!methods.empty()) {
        const std::string_view first = methods.substr(0, methods.find(','));
        if (first == method) return true;
        methods.remove_prefix(std::min(methods.size(), first.size() + 1));
        methods.remove_prefix(std::min(methods.size(), methods.find_first_not_of(' ')));
    }
    return false;
}

bool matches(const Route& route, std::string_view path, std::string& rest) {
    if (!route.path.ends_with(kBelow)) return path == route.path;
    // the path before the *, with its slash
    const std::string_view head = route.path.substr(0, route.path.size() - 1);
    if (!path.starts_with(head) || path.size() == head.size()) return false;
    rest = path.substr(head.size());
    return true;
}

}  // namespace

std::string_view name_of(Dialect dialect) {
    switch (dialect) {
        case Dialect::kPitstop:
            return "pitstop";
        case Dialect::kSglang:
            return "SGLang";
        case Dialect::kOpenAi:
            return "OpenAI";
        case Dialect::kVllm:
            return "vLLM";
        case Dialect::kAnthropic:
            return "Anthropic";
    }
    return "";
}

bool Route::takes(std::string_view method) const {
    return has_method(methods, method) || (method == "HEAD" && has_method(methods, "GET"));
}

void Router::add(const Route& route) {
    for (const Route& other : routes_) {
        if (other.path != route.path) continue;
        for (const std::string_view method : {"GET", "POST", "PUT", "DELETE"})
            CHECK(!(other.takes(method) && route.takes(method)));
    }
    routes_.push_back(route);
}

void Router::add(Dialect dialect, Access access, std::initializer_list<Row> rows) {
    for (const Row& row : rows)
        add({
            row.methods,
            row.path,
            dialect,
            access,
            row.handler,
            row.needs_tree,
            row.brings_weights,
            row.media,
        });
}

void Router::add_weights(Dialect dialect, std::initializer_list<Row> rows) {
    for (Row row : rows) {
        row.brings_weights = true;
        add(dialect, Access::kAdmin, {row});
    }
}

Router::Found Router::find(std::string_view method, std::string_view path) const {
    Found found;
    for (const Route& route : routes_) {
        std::string rest;
        if (!matches(route, path, rest)) continue;
        if (route.takes(method)) return {.route = &route, .rest = std::move(rest)};
        if (!found.allow.empty()) found.allow += ", ";
        found.allow += route.methods;
        if (has_method(route.methods, "GET")) found.allow += ", HEAD";
    }
    if (!found.allow.empty()) found.allow += ", OPTIONS";
    return found;
}

Dialect Router::dialect_of(std::string_view path) {
    if (path == "/v1/messages" || path.starts_with("/v1/messages/")) return Dialect::kAnthropic;
    if (path.starts_with("/v1/")) return Dialect::kOpenAi;
    if (path.starts_with("/inference/")) return Dialect::kVllm;
    return Dialect::kSglang;
}

std::string Router::describe() const {
    std::string text;
    for (const Route& route : routes_) {
        text += fmt::format(
            "{}\t{}\t{}\t{}\n",
            route.methods,
            route.path,
            name_of(route.dialect),
            name_of(route.access)
        );
    }
    return text;
}

}  // namespace pitstop::http
