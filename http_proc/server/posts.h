// Adds many routes that differ in nothing but their path and their handler.
#pragma once

#include "http_proc/server/router.h"

#include <initializer_list>
#include <string_view>
#include <utility>

namespace pitstop::http {

// Adds a POST for each path, all of one dialect and behind one key.
// REQUIRES: as Router::add, of each.
void add_posts(
    Router& router,
    Dialect dialect,
    Access access,
    std::initializer_list<std::pair<std::string_view, Handler>> posts
);

}  // namespace pitstop::http
