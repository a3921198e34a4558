// All routes in one declarative table. `pitstop_http --routes` prints it, and a test compares the
// table of docs/http.md with it.
//
// http_proc has these rooms, and a route belongs to one. Each includes only those above it:
//
//   format/                  heads, keys, JSON bodies, what dialects share in them: no coroutines
//   server/                  server and connection: HTTP/1.1 on Asio and Beast, which nothing else
//                            includes; router, this table; errors, an Error in each dialect's
//                            shape; exchange.h and task.h, a handler's argument and its result;
//                            tree, the client library, awaitable
//   generation/ control/     code that the dialects' routes share
//   observe/                 health, metrics, the status page
//   sglang/ openai/ vllm/    handlers, <noun>.cpp, each with the add_<dialect>_<noun>(Router&) that
//   anthropic/               lists its routes; <noun>_request only parses, without coroutines: the
//                            fuzz targets run it
//   main.cpp, routes.cpp     flags, the loop, the connection to the tree and to the launcher; all
//                            routes
//
// For a new file: write it, name its add_ function in its room's routes.h and in routes.cpp, list
// it in its room's CMakeLists.txt, and give each route its row in docs/http.md.
#pragma once

#include "http_proc/format/keys.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

// The dialect of a route, which decides the shape of its errors (errors.h).
enum class Dialect { kPitstop, kSglang, kOpenAi, kVllm, kAnthropic };
[[nodiscard]] std::string_view name_of(Dialect dialect);

using Handler = Task<Response> (*)(Exchange& exchange);

struct Route {
    // "GET" or "GET, POST"; GET includes HEAD, and OPTIONS always exists
    std::string_view methods{};
    std::string_view path{};  // exact; one that ends with "/*" also matches every path below
    Dialect dialect{};
    Access access{};
    Handler handler{};
    bool needs_tree = true;  // false: answered even before the tree is ready
    // Whether calls of the route may be parts of a version. The tree is told if such a call is
    // refused here.
    bool brings_weights = false;

    [[nodiscard]] bool takes(std::string_view method) const;
};

class Router {
  public:
    // REQUIRES: no route of the same path has any of its methods.
    void add(const Route& route);

    // The remaining fields of a route, in Route's order, for adding several with one dialect and
    // one key.
    struct Row {
        std::string_view methods{};
        std::string_view path{};
        Handler handler{};
        bool needs_tree = true;
        bool brings_weights = false;
    };
    void add(Dialect dialect, Access access, std::initializer_list<Row> rows);
    // Adds admin routes whose calls contain weights (Route::brings_weights).
    void add_weights(Dialect dialect, std::initializer_list<Row> rows);

    struct Found {
        const Route* route = nullptr;  // null: see `allow`
        std::string allow{};           // methods of the path; empty: no such path
        std::string rest{};            // what "/*" matched
    };
    [[nodiscard]] Found find(std::string_view method, std::string_view path) const;

    // Returns the dialect whose error shape a path without a route gets.
    [[nodiscard]] static Dialect dialect_of(std::string_view path);

    [[nodiscard]] const std::vector<Route>& routes() const { return routes_; }
    // Returns "METHODS PATH DIALECT ACCESS", one route per line.
    [[nodiscard]] std::string describe() const;

  private:
    std::vector<Route> routes_{};  // at most a hundred: a scan is as fast as a map
};

}  // namespace pitstop::http
