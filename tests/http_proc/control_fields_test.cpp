// Tests the places of control calls' fields, and the meanings of their words.
#include "http_proc/format/control_fields.h"

#include "http_proc/control/control.h"
#include "http_proc/format/json_body.h"
#include "http_proc/vllm/pause.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

nlohmann::json fields_of(const std::string& target, std::string body = {}) {
    Request request;
    EXPECT_TRUE(parse_target(target, request));
    request.body = std::move(body);
    const auto fields = control_fields(request);
    EXPECT_TRUE(fields) << fields.error().message;
    return fields ? *fields : nlohmann::json();
}

TEST(ControlFields, NoBodyAnEmptyOneAndAnEmptyObjectAreTheSame) {
    for (const char* body : {"", " \n", "{}", "null"}) {
        EXPECT_EQ(fields_of("/pause", body), nlohmann::json::object()) << body;
    }
}

TEST(ControlFields, TheQueryWinsOverTheBody) {
    const nlohmann::json fields = fields_of("/pause?mode=keep", R"({"mode": "wait", "x": 1})");
    EXPECT_EQ(fields["mode"], "keep");
    EXPECT_EQ(fields["x"], 1);
}

TEST(ControlFields, WhereTheBodyWinsTheQueryAddsWhatItDoesNotHave) {
    Request request;
    ASSERT_TRUE(parse_target("/abort_request?abort_all=true&rid=a&rid=b", request));
    request.body = R"({"abort_all": false})";
    const auto fields = control_fields(request, Winner::kBody);
    ASSERT_TRUE(fields) << fields.error().message;
    EXPECT_EQ((*fields)["abort_all"], false);
    EXPECT_EQ((*fields)["rid"], nlohmann::json({"a", "b"}));
}

TEST(ControlFields, AParameterGivenTwiceIsAListAlsoOverABodysOwn) {
    EXPECT_EQ(
        fields_of("/wake_up?tags=a&tags=b&tags=c", R"({"tags": ["z"]})")["tags"],
        nlohmann::json({"a", "b", "c"})
    );
}

TEST(ControlFields, TextsOfAQueryAreReadAsWhatTheyAre) {
    const nlohmann::json json =
        fields_of("/sleep?level=2&clear_cache=false&timeout=1.5&tags=weights");
    FieldReader fields(json);
    std::int64_t level = 0;
    bool clear_cache = true;
    double timeout = 0;
    std::vector<std::string> tags;
    fields.read("level", level);
    fields.read("clear_cache", clear_cache);
    fields.read("timeout", timeout);
    fields.read("tags", tags);
    EXPECT_FALSE(fields.error());
    EXPECT_EQ(level, 2);
    EXPECT_FALSE(clear_cache);
    EXPECT_EQ(timeout, 1.5);
    EXPECT_EQ(tags, std::vector<std::string>{"weights"});
}

TEST(ControlFields, ABodyThatIsNoObjectIsRefused) {
    for (const char* body : {"[1]", "7", "{", "\xff"}) {
        Request request;
        request.body = body;
        EXPECT_FALSE(control_fields(request)) << body;
    }
}

TEST(VllmPause, ItsModesAreTheSchedulers) {
    EXPECT_EQ(*vllm_pause_mode("abort", true), messages::PauseMode::kAbort);
    EXPECT_EQ(*vllm_pause_mode("wait", false), messages::PauseMode::kWait);
    EXPECT_EQ(*vllm_pause_mode("keep", true), messages::PauseMode::kRetract);
    EXPECT_EQ(*vllm_pause_mode("keep", false), messages::PauseMode::kInPlace);
    EXPECT_FALSE(vllm_pause_mode("foo", true));
}

TEST(MemoryTags, AreKnownByNameEachOnceAndGraphsMeanNothing) {
    const auto tags = control::tags_named({"kv_cache", "cuda_graph", "kv_cache", "weights"}, {});
    ASSERT_TRUE(tags);
    EXPECT_EQ(*tags, (std::vector{messages::MemoryTag::kKvCache, messages::MemoryTag::kWeights}));
    EXPECT_TRUE(control::tags_named({"scheduling"}, "scheduling")->empty());
    const auto unknown = control::tags_named({"graphs"}, {});
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message.find("'graphs'"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::http
