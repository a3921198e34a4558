// The description of the routes, which the first request for it makes.
#include "http_proc/observe/openapi.h"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <string>

namespace pitstop::http {
namespace {

TEST(OpenApi, AnExceptionIsAnsweredAndTheNextRequestTriesAgain) {
    std::shared_future<Result<std::string>> text;
    make_once(text, []() -> std::string { throw std::bad_alloc(); });
    const Result<std::string> failed = text.get();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(failed.error().message.find("bad_alloc"), std::string::npos);
    make_once(text, [] { return std::string("routes"); });
    const Result<std::string> made = text.get();
    ASSERT_TRUE(made);
    EXPECT_EQ(*made, "routes");
}

TEST(OpenApi, ItIsMadeOnce) {
    std::shared_future<Result<std::string>> text;
    std::promise<std::string> first;
    make_once(text, [&] { return first.get_future().get(); });
    EXPECT_FALSE(is_made(text));
    make_once(text, [] { return std::string("again"); });
    first.set_value("routes");
    EXPECT_EQ(*text.get(), "routes");
    make_once(text, [] { return std::string("again"); });
    EXPECT_EQ(*text.get(), "routes");
}

}  // namespace
}  // namespace pitstop::http
