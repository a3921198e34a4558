// Tests which requests without a key may come from another site's page.
#include "http_proc/format/site.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

struct Sent {
    std::string method = "POST";
    std::vector<Header> headers{};
    std::string authority{};
};

bool is_taken(const Sent& sent, const SiteRules& rules = {}, Access access = Access::kAdmin) {
    Request request;
    request.method = sent.method;
    request.path = "/flush_cache";
    request.headers = sent.headers;
    request.authority = sent.authority;
    return !problem_of_site(request, access, rules);
}

bool is_host_taken(const std::string& host, const SiteRules& rules = {}) {
    return is_taken({.headers = {{"host", host}}}, rules);
}

TEST(Site, AddressesAndLocalhostAreHostsOfAnybody) {
    for (const char* host :
         {"127.0.0.1",
          "127.0.0.1:30000",
          "127.9.9.9:1",
          "10.1.2.3:30000",
          "0.0.0.0:30000",
          "192.168.0.1",
          "[::1]",
          "[::1]:30000",
          "[2001:db8::7]:30000",
          "[fe80::1%eth0]:30000",
          "[::ffff:10.0.0.1]",
          "localhost",
          "localhost:30000",
          "LocalHost:30000",
          "localhost.",
          "localhost.:30000",
          "engine.localhost:30000",
          "localhost:"})
        EXPECT_TRUE(is_host_taken(host)) << host;
}

TEST(Site, OtherNamesAreNot) {
    for (const char* host :
         {"evil.example",
          "evil.example:30000",
          "localhost.evil.example",
          "127.0.0.1.evil.example",
          "127.0.0.1.nip.io:30000",
          "notlocalhost",
          ".localhost",
          "node7",
          "",
          ":30000",
          "[::1",
          "[evil.example]:30000",
          "::1",
          "127.0.0.1:30000:1",
          "127.0.0.1:x",
          "user@127.0.0.1",
          "127.0.0.1 evil.example",
          "127.0.0.1,evil.example",
          "127.0.0.256",
          "1.2.3",
          "[]",
          "localhost.."})
        EXPECT_FALSE(is_host_taken(host)) << host;
}

TEST(Site, ANameMayBeAllowed) {
    SiteRules rules{.allowed_hosts = {"node7", ".cluster.local"}};
    EXPECT_TRUE(check_site_rules(rules));
    for (const char* host : {"node7", "NODE7:30000", "node7.", "a.b.Cluster.Local:80"})
        EXPECT_TRUE(is_host_taken(host, rules)) << host;
    for (const char* host :
         {"node77", "xnode7", "cluster.local", "xcluster.local", "node7.evil.example"})
        EXPECT_FALSE(is_host_taken(host, rules)) << host;
    rules.allowed_hosts = {"*"};
    EXPECT_TRUE(check_site_rules(rules));
    EXPECT_TRUE(is_host_taken("evil.example:30000", rules));
    EXPECT_FALSE(is_host_taken("", rules));
}

TEST(Site, TextThatIsNoNameIsNotAllowed) {
    const std::string long_name(254, 'a');
    for (const std::string name :
         {"",
          ".",
          "node7:30000",
          "http://node7",
          "*.example",
          "a b",
          "a.",
          "[::1]",
          "n\xc3\xb6",
          long_name.c_str()}) {
        const Result<> checked = check_site_rules({.allowed_hosts = {"fine", name}});
        ASSERT_FALSE(checked) << name;
        EXPECT_NE(checked.error().message.find("without a port"), std::string::npos);
    }
}

TEST(Site, TheTargetsOwnAuthorityCountsInPlaceOfHost) {
    EXPECT_FALSE(is_taken({.headers = {{"host", "localhost"}}, .authority = "evil.example"}));
    EXPECT_TRUE(is_taken({.headers = {{"host", "evil.example"}}, .authority = "localhost:1"}));
}

TEST(Site, Http10MayComeWithoutAHost) {
    EXPECT_TRUE(is_taken({}));
    EXPECT_FALSE(is_taken({.headers = {{"origin", "http://localhost:30000"}}}));
}

bool is_origin_taken(
    const std::string& host, const std::string& origin, const SiteRules& rules = {}
) {
    return is_taken({.headers = {{"host", host}, {"origin", origin}}}, rules);
}

TEST(Site, APageOfItsOwnOriginMayAsk) {
    EXPECT_TRUE(is_origin_taken("localhost:30000", "http://localhost:30000"));
    EXPECT_TRUE(is_origin_taken("LOCALHOST:30000", "http://localhost:30000"));
    EXPECT_TRUE(is_origin_taken("[::1]:30000", "http://[::1]:30000"));
    EXPECT_TRUE(is_origin_taken("10.0.0.5", "http://10.0.0.5"));
    EXPECT_TRUE(is_origin_taken("10.0.0.5:80", "http://10.0.0.5"));
    EXPECT_TRUE(is_origin_taken("10.0.0.5", "https://10.0.0.5:443")) << "behind a proxy for TLS";
}

TEST(Site, APageOfAnotherOriginMayNot) {
    for (const char* origin :
         {"http://evil.example",
          "http://localhost",
          "http://localhost:3000",
          "http://127.0.0.1:30000",
          "https://localhost:30001",
          "http://localhost:30000.evil.example",
          "http://localhost:30000/",
          "http://evil.example@localhost:30000",
          "null",
          "",
          "file://",
          "chrome-extension://abc",
          "localhost:30000"})
        EXPECT_FALSE(is_origin_taken("localhost:30000", origin)) << origin;
    const Sent two{
        .headers = {
            {"host", "localhost:1"},
            {"origin", "http://localhost:1"},
            {"origin", "http://evil.example"}}};
    EXPECT_FALSE(is_taken(two));
}

TEST(Site, AnOriginMayBeAllowed) {
    const SiteRules rules{.cors_origin = "https://app.example"};
    EXPECT_TRUE(is_origin_taken("localhost:1", "https://app.example", rules));
    EXPECT_FALSE(is_origin_taken("localhost:1", "http://app.example", rules));
    EXPECT_FALSE(is_origin_taken("evil.example", "https://app.example", rules))
        << "its host counts";
    EXPECT_TRUE(is_origin_taken("localhost:1", "https://any.example", {.cors_origin = "*"}));
}

TEST(Site, TheBrowsersHeaderAboutThePageCounts) {
    const auto is_site_taken = [](const std::string& site, const SiteRules& rules = {}) {
        return is_taken(
            {.method = "GET", .headers = {{"host", "localhost:1"}, {"sec-fetch-site", site}}}, rules
        );
    };
    EXPECT_TRUE(is_site_taken("same-origin"));
    EXPECT_TRUE(is_site_taken("none")) << "the address bar";
    EXPECT_FALSE(is_site_taken("cross-site"));
    EXPECT_FALSE(is_site_taken("same-site")) << "another port of this machine";
    EXPECT_FALSE(is_site_taken("what-comes-next"));
    EXPECT_FALSE(is_site_taken("cross-site", {.cors_origin = "*"}))
        << "a link, which has no origin";
    const Sent allowed{
        .headers = {
            {"host", "localhost:1"},
            {"origin", "https://app.example"},
            {"sec-fetch-site", "cross-site"}}};
    EXPECT_FALSE(is_taken(allowed));
    EXPECT_TRUE(is_taken(allowed, {.cors_origin = "https://app.example"}));
}

TEST(Site, ABrowsersGetOfAnAdminRouteSaysWhichPageAsks) {
    Sent sent{
        .method = "GET",
        .headers = {{"host", "10.0.0.5:30000"}, {"user-agent", "Mozilla/5.0 (X11; Linux x86_64)"}}};
    EXPECT_FALSE(is_taken(sent)) << "an image of http://10.0.0.5:30000/flush_cache";
    EXPECT_TRUE(is_taken(sent, {}, Access::kData)) << "it changes nothing";
    sent.method = "HEAD";
    EXPECT_FALSE(is_taken(sent));
    sent.method = "POST";
    EXPECT_TRUE(is_taken(sent)) << "no browser posts to another origin without Origin";
    sent.method = "GET";
    sent.headers.push_back({"sec-fetch-site", "same-origin"});
    EXPECT_TRUE(is_taken(sent));
    sent.headers = {{"host", "10.0.0.5:30000"}, {"user-agent", "python-requests/2.32"}};
    EXPECT_TRUE(is_taken(sent));
}

}  // namespace
}  // namespace pitstop::http
