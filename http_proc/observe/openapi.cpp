#include "http_proc/observe/openapi.h"

#include "http_proc/observe/route_probe.h"
#include "http_proc/server/errors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::string_view kBelow = "/*";
constexpr std::string_view kRest = "{name}";  // what "/*" matches

// Statuses that the server itself answers with, whatever the route is.
constexpr auto kOfServer = std::to_array<int>({400, 401, 403, 404, 405, 408, 413, 415, 431, 503});

std::set<int> statuses() {
    std::set<int> all(kOfServer.begin(), kOfServer.end());
    for (const ErrorCode code : kAllErrorCodes) all.insert(status_of(code));
    return all;
}

// Derives the schema of an error's body from an example.
Ordered schema_of_error(const Ordered& body) {
    if (body.is_object()) {
        Ordered schema{{"type", "object"}, {"properties", Ordered::object()}};
        for (const auto& [name, value] : body.items()) {
            schema["properties"][name] = schema_of_error(value);
            schema["required"].push_back(name);
        }
        return schema;
    }
    if (body.is_number()) return {{"type", "integer"}};
    if (body.is_null()) return Ordered::object();
    return {{"type", "string"}};
}

std::string name_of_error(Dialect dialect) { return fmt::format("{}Error", name_of(dialect)); }

Ordered error_schema(Dialect dialect) {
    Ordered general = schema_of_error(Ordered::parse(error_json(dialect, 400, "")));
    const Ordered key =
        schema_of_error(Ordered::parse(error_json(dialect, 401, reason_phrase(401))));
    if (general == key) return general;
    return Ordered{{"anyOf", Ordered::array({general, key})}};
}

std::string path_of(const Route& route) {
    std::string path(route.path);
    if (route.path.ends_with(kBelow)) path.replace(path.size() - 1, 1, kRest);
    return path;
}

std::vector<std::string> methods_of(const Route& route) {
    std::vector<std::string> methods;
    for (const std::string_view method : {"GET", "POST", "PUT", "DELETE"}) {
        if (!route.takes(method)) continue;
        std::string& lower = methods.emplace_back(method);
        for (char& c : lower) c = static_cast<char>(c - 'A' + 'a');
    }
    return methods;
}

Ordered responses_of(const Route& route, bool has_streams) {
    Ordered responses;
    Ordered& success = responses["200"];
    success["description"] = reason_phrase(200);
    if (!route.media.empty())
        success["content"][std::string(route.media)]["schema"] = Ordered::object();
    if (has_streams)
        success["content"]["text/event-stream"]["schema"] = Ordered{{"type", "string"}};
    const Ordered body{{"$ref", "#/components/schemas/" + name_of_error(route.dialect)}};
    for (const int status : statuses()) {
        Ordered& response = responses[std::to_string(status)];
        response["description"] = reason_phrase(status);
        response["content"]["application/json"]["schema"] = body;
    }
    return responses;
}

// Describes the call of a route by one method. Fields are in the query of a GET, else in the body.
Ordered operation_of(
    const Route& route, std::string_view method, const Ordered& fields, bool has_keys
) {
    Ordered operation;
    std::string id = fmt::format("{}_{}", method, path_of(route));
    for (char& c : id) {
        if (std::string_view("/.{}").find(c) != std::string_view::npos) c = '_';
    }
    operation["operationId"] = id;
    operation["tags"] = Ordered::array({name_of(route.dialect)});
    operation["x-access"] = name_of(route.access);
    Ordered parameters = Ordered::array();
    if (route.path.ends_with(kBelow)) {
        const Ordered text{{"type", "string"}, {"minLength", 1}};
        parameters.push_back(
            {{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", text}}
        );
    }
    const Ordered& properties = fields.at("properties");
    const Ordered required = fields.value("required", Ordered::array());
    if (method == "get") {
        for (const auto& [name, schema] : properties.items()) {
            const bool is_required =
                std::find(required.begin(), required.end(), name) != required.end();
            parameters.push_back(
                {{"name", name}, {"in", "query"}, {"required", is_required}, {"schema", schema}}
            );
        }
    } else if (!properties.empty()) {
        operation["requestBody"] = {
            {"required", !required.empty()},
            {"content", {{"application/json", {{"schema", fields}}}}}};
    }
    if (!parameters.empty()) operation["parameters"] = std::move(parameters);
    operation["responses"] = responses_of(route, properties.contains("stream"));
    if (has_keys && route.access != Access::kOpen)
        operation["security"] = Ordered::array(
            {Ordered{{"bearer", Ordered::array()}}, Ordered{{"key", Ordered::array()}}}
        );
    return operation;
}

}  // namespace

std::string openapi_document(
    const Router& router, const ServerOptions& options, std::string_view version
) {
    Ordered document;
    document["openapi"] = "3.1.0";
    document["info"] = {{"title", "pitstop"}, {"version", version}};
    const bool has_keys = !options.keys.api.empty() || !options.keys.admin.empty();
    Ordered& paths = document["paths"];
    std::set<Dialect> dialects;
    for (const Route& route : router.routes()) {
        dialects.insert(route.dialect);
        const Ordered fields = RouteProbe(route, options).schema();
        for (const std::string& method : methods_of(route))
            paths[path_of(route)][method] = operation_of(route, method, fields, has_keys);
    }
    Ordered& components = document["components"];
    for (const Dialect dialect : dialects)
        components["schemas"][name_of_error(dialect)] = error_schema(dialect);
    components["securitySchemes"] = {
        {"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
        {"key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
    return document.dump();
}

void make_once(std::shared_future<Result<std::string>>& text, std::function<std::string()> make) {
    if (text.valid() && (!is_made(text) || text.get())) return;
    text = std::async(std::launch::async, [make = std::move(make)]() -> Result<std::string> {
        try {
            return make();
        } catch (const std::exception& error) {  // usually: no memory
            return make_error(ErrorCode::kResourceExhausted, "no description: {}", error.what());
        }
    });
}

bool is_made(const std::shared_future<Result<std::string>>& text) {
    return text.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace pitstop::http
