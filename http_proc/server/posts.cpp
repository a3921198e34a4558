#include "http_proc/server/posts.h"

namespace pitstop::http {

void add_posts(
    Router& router,
    Dialect dialect,
    Access access,
    std::initializer_list<std::pair<std::string_view, Handler>> posts
) {
    for (const auto& [path, handler] : posts) {
        router.add(
            {.methods = "POST",
             .path = path,
             .dialect = dialect,
             .access = access,
             .handler = handler}
        );
    }
}

}  // namespace pitstop::http
