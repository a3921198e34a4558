// The routes: one declarative table. `pitstop_http --routes` prints it, and a test compares the
// table of docs/http.md with it.
//
// How http_proc is laid out, for whoever adds a route:
//
//   main.cpp                 flags, the loop, the tie to the tree and to the launcher
//   server, connection       HTTP/1.1 on Asio and Beast; nothing else includes them
//   router, keys, message    this table, who may call what, requests and responses
//   exchange.h, task.h       what a handler is given, and what it is
//   tree                     the client library, awaitable: calls and generation
//   json_body, errors        parsing bodies with limits; an Error in each dialect's shape
//   <dialect>_<noun>.cpp     handlers and the add_<dialect>_<noun>(Router&) that lists their routes
//   <dialect>_<noun>_request parsing alone, without coroutines: the fuzz targets run it
//   routes.h, routes.cpp     calls every add_...(Router&)
//
// A new file: write it, name its add_ function in routes.h and routes.cpp, list it in
// CMakeLists.txt, and give each route its row in docs/http.md.
#pragma once

#include "http_proc/exchange.h"
#include "http_proc/keys.h"
#include "http_proc/task.h"

#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

// Whose route it is: decides the shape of its errors (errors.h).
enum class Dialect { kPitstop, kSglang, kOpenAi, kVllm };
[[nodiscard]] std::string_view name_of(Dialect dialect);

using Handler = Task<Response> (*)(Exchange& exchange);

struct Route {
    std::string_view methods{};  // "GET" or "GET, POST"; HEAD comes with GET, OPTIONS with all
    std::string_view path{};     // exact; one that ends with "/*" takes every path below, too
    Dialect dialect{};
    Access access{};
    Handler handler{};
    bool needs_tree = true;  // false: answered also before the tree is there

    [[nodiscard]] bool takes(std::string_view method) const;
};

class Router {
  public:
    // REQUIRES: no route of the same path takes any of its methods.
    void add(const Route& route);

    struct Found {
        const Route* route = nullptr;  // null: see `allow`
        std::string allow{};           // methods of the path; empty: there is no such path
        std::string rest{};            // what "/*" stands for
    };
    [[nodiscard]] Found find(std::string_view method, std::string_view path) const;

    // Whose error shape a path that has no route gets.
    [[nodiscard]] static Dialect dialect_of(std::string_view path);

    [[nodiscard]] const std::vector<Route>& routes() const { return routes_; }
    // "METHODS PATH DIALECT ACCESS", a line each.
    [[nodiscard]] std::string describe() const;

  private:
    std::vector<Route> routes_{};  // a hundred at most: a scan is as fast as a map
};

}  // namespace pitstop
