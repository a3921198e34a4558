// All routes, in one declarative table. `pitstop_http --routes` prints the table, and a test
// compares it with docs/http.md.
//
// The rooms of http_proc. A route belongs to one room, and each room includes only those above it:
//
//   format/                  heads, keys, JSON bodies, parts that dialects share: no coroutines
//   server/                  server and connection: HTTP/1.1 on Asio and Beast, which no other file
//                            includes; router: this table; errors: an Error in the shape of each
//                            dialect; exchange.h and task.h: a handler's argument and result;
//                            tree: the client library, made awaitable
//   generation/ control/     code that the dialects' routes share
//   observe/                 health, metrics, the status page
//   sglang/ openai/ vllm/    <noun>.cpp has handlers, and add_<dialect>_<noun>(Router&) to add
//   anthropic/               their routes; <noun>_request only parses, without coroutines, so
//                            that fuzz targets can run it
//   main.cpp, routes.cpp     flags, the loop, the connections to the tree and to the launcher; all
//                            routes
//
// To add a file: write it, name its add_ function in its room's routes.h and in routes.cpp, list it
// in its room's CMakeLists.txt, and add a row for each route to docs/http.md.
#pragma once

#include "http_proc/format/keys.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// The dialect of a route; determines the shape of its errors (errors.h).
enum class Dialect { kPitstop, kSglang, kOpenAi, kVllm, kAnthropic };
[[nodiscard]] std::string_view name_of(Dialect dialect);

inline constexpr std::string_view kJsonMedia = "application/json";
inline constexpr std::string_view kTextMedia = "text/plain";

using Handler = Task<Response> (*)(Exchange& exchange);

struct Route {
    // "GET" or "GET, POST"; GET includes HEAD, and OPTIONS is always accepted
    std::string_view methods{};
    std::string_view path{};  // exact; a path that ends with "/*" also matches all paths below
    Dialect dialect{};
    Access access{};
    Handler handler{};
    bool needs_tree = true;  // false: answered even before the tree is ready
    // Calls of the route may be parts of a version. The tree is told if such a call is refused
    // here.
    bool brings_weights = false;
    std::string_view media = kJsonMedia;  // of a 200 response; empty: the body may be absent

    [[nodiscard]] bool takes(std::string_view method) const;
};

class Router {
  public:
    // REQUIRES: no other route of the path has one of its methods.
    void add(const Route& route);

    // The fields of a route that differ among several with one dialect and one
    // access.
    struct Row {
        std::string_view methods{};
        std::string_view path{};
        Handler handler{};
        bool needs_tree = true;
        bool brings_weights = false;
        std::string_view media = kJsonMedia;
    };
    void add(Dialect dialect, Access access, std::initializer_list<Row> rows);
    // Adds admin routes whose calls contain weights (Route::brings_weights).
    void add_weights(Dialect dialect, std::initializer_list<Row> rows);

    struct Found {
        const Route* route = nullptr;  // null: see `allow`
        std::string allow{};           // methods of the path; empty: the path does not exist
        std::string rest{};            // the part of the path that "/*" matched
    };
    [[nodiscard]] Found find(std::string_view method, std::string_view path) const;

    // Returns the dialect that shapes the error for a path without a route.
    [[nodiscard]] static Dialect dialect_of(std::string_view path);

    [[nodiscard]] const std::vector<Route>& routes() const { return routes_; }
    // Returns "METHODS PATH DIALECT ACCESS", one route per line.
    [[nodiscard]] std::string describe() const;

  private:
    std::vector<Route> routes_{};  // at most a hundred: a scan is as fast as a map
};

}  // namespace pitstop::http
