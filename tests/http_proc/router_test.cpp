// Routes, targets and keys.
#include "http_proc/server/router.h"

#include "http_proc/format/keys.h"
#include "http_proc/format/message.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

Task<Response> nothing(Exchange&) { co_return Response::empty(200); }

Router two_routes() {
    Router router;
    router.add({"GET, POST", "/a", Dialect::kSglang, Access::kData, nothing});
    router.add({"DELETE", "/a", Dialect::kSglang, Access::kAdmin, nothing});
    router.add({"GET", "/b/*", Dialect::kOpenAi, Access::kOpen, nothing});
    return router;
}

TEST(Router, FindsByMethodAndPath) {
    const Router router = two_routes();
    EXPECT_EQ(router.find("POST", "/a").route, &router.routes()[0]);
    EXPECT_EQ(router.find("HEAD", "/a").route, &router.routes()[0]);
    EXPECT_EQ(router.find("DELETE", "/a").route, &router.routes()[1]);
    EXPECT_EQ(router.find("GET", "/b/x/y").rest, "x/y");
    for (const char* path : {"/b", "/b/", "/ab", "/A", "/a/", ""})
        EXPECT_EQ(router.find("GET", path).route, nullptr) << path;
}

TEST(Router, TellsWhatAPathTakes) {
    const Router router = two_routes();
    EXPECT_EQ(router.find("PUT", "/a").allow, "GET, POST, HEAD, DELETE, OPTIONS");
    EXPECT_EQ(router.find("post", "/a").route, nullptr);  // methods are case-sensitive
    EXPECT_EQ(router.find("GET", "/c").allow, "");
}

TEST(Target, IsTakenApart) {
    Request request;
    ASSERT_TRUE(parse_target("/a%20b/c?x=1&y=a%26b+c&x=2&flag&=v", request));
    EXPECT_EQ(request.path, "/a b/c");
    const std::vector<std::pair<std::string, std::string>> query{
        {"x", "1"}, {"y", "a&b c"}, {"x", "2"}, {"flag", ""}, {"", "v"}};
    EXPECT_EQ(request.query, query);
    EXPECT_EQ(request.query_value("x"), "1");
    Request absolute;
    ASSERT_TRUE(parse_target("http://host:1?q=1", absolute));
    EXPECT_EQ(absolute.path, "/");
    EXPECT_EQ(absolute.query_value("q"), "1");
}

TEST(Target, IsRefusedWhereItIsNone) {
    for (const std::string_view target :
         {"", "a", "/%", "/%1", "/%zz", "/%00", "/a b", "/a\r\nb", "ftp://x/"}) {
        Request request;
        EXPECT_FALSE(parse_target(target, request)) << target;
    }
}

Grant granted(const Keys& keys, std::string header, std::string value) {
    Request request;
    if (!header.empty()) request.headers.push_back({std::move(header), std::move(value)});
    return grant_of(request, keys);
}

TEST(Keys, OpenWhatTheTableSays) {
    const Keys none;
    const Keys api{.api = "k", .admin = ""};
    const Keys admin{.api = "", .admin = "a"};
    const Keys both{.api = "k", .admin = "a"};
    EXPECT_EQ(granted(none, "", ""), Grant::kAdmin);
    EXPECT_EQ(granted(api, "", ""), Grant::kNone);
    EXPECT_EQ(granted(api, "authorization", "Bearer k"), Grant::kAdmin);
    EXPECT_EQ(granted(admin, "", ""), Grant::kData);
    EXPECT_EQ(granted(admin, "authorization", "Bearer a"), Grant::kAdmin);
    EXPECT_EQ(granted(both, "", ""), Grant::kNone);
    EXPECT_EQ(granted(both, "authorization", "bearer   k"), Grant::kData);
    EXPECT_EQ(granted(both, "x-api-key", "a"), Grant::kAdmin);
    EXPECT_EQ(granted(both, "authorization", "Basic k"), Grant::kNone);
}

TEST(Keys, AreEqualAsAWhole) {
    EXPECT_TRUE(Keys::is_equal("secret", "secret"));
    for (const std::string_view given : {"", "secre", "secret1", "Secret", "tecret"})
        EXPECT_FALSE(Keys::is_equal(given, "secret")) << given;
}

}  // namespace
}  // namespace pitstop::http
