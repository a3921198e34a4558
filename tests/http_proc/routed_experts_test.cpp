// Tests the forms of routes. The base64 literals are Python's base64.b64encode(struct.pack(...)).
#include "http_proc/format/routed_experts.h"

#include "http_proc/format/base64.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace pitstop::http {
namespace {

using nlohmann::json;

// Routes of 2 layers with one expert each.
messages::Routes routes(std::int64_t start, std::vector<int> ids, std::int64_t num_experts) {
    messages::Routes part{
        .start = start, .shape = {.layers = 2, .per_token = 1, .num_experts = num_experts}};
    std::vector<std::uint8_t> bytes;
    for (const int id : ids) {
        bytes.push_back(static_cast<std::uint8_t>(id & 0xff));
        if (num_experts > 256) bytes.push_back(static_cast<std::uint8_t>(id >> 8));
    }
    part.append(bytes, Epoch{1});
    return part;
}

json written(RoutesOutput& output, std::int64_t num_tokens, bool is_last) {
    JsonWriter writer;
    writer.begin_object();
    output.write(writer, num_tokens, is_last);
    writer.end_object();
    return json::parse(writer.text());
}

// The routes in an answer of 4 tokens: rows of tokens 1 and 2.
json whole(RoutesForm form, std::vector<int> ids, std::int64_t num_experts) {
    messages::Routes rows = routes(1, std::move(ids), num_experts);
    RoutesOutput output({.start = 1, .form = form}, rows.shape);
    output.append(std::move(rows));
    return written(output, 4, /*is_last=*/true);
}

json envelope(std::string_view data, std::string_view dtype) {
    return {{"data", data}, {"shape", {2, 2, 1}}, {"start", 1}, {"dtype", dtype}};
}

TEST(RoutesOutput, PrimeRlsDtypeIsTheModels) {
    const auto of = [](std::vector<int> ids, std::int64_t num_experts) {
        return whole(RoutesForm::kEnvelope, std::move(ids), num_experts)["routed_experts"];
    };
    EXPECT_EQ(of({1, 2, 255, 4}, 256), envelope("AQL/BA==", "uint8"));
    EXPECT_EQ(of({1, 2, 255, 4}, 512), envelope("AQACAP8ABAA=", "uint16"));
    EXPECT_EQ(of({1, 2, 256, 511}, 512), envelope("AQACAAAB/wE=", "uint16"));
}

TEST(RoutesOutput, SkyRlsDtypeIsTheSmallestOfTheIds) {
    const auto of = [](std::vector<int> ids, std::int64_t num_experts) {
        return whole(RoutesForm::kSmallest, std::move(ids), num_experts)["routed_experts"];
    };
    EXPECT_EQ(of({1, 2, 255, 4}, 256), envelope("AQL/BA==", "uint8"));
    EXPECT_EQ(of({1, 2, 255, 4}, 512), envelope("AQL/BA==", "uint8"));
    EXPECT_EQ(of({1, 2, 256, 511}, 512), envelope("AQACAAAB/wE=", "int16"));
    EXPECT_EQ(of({1, 2, 255, 32768}, 40000), envelope("AQAAAAIAAAD/AAAAAIAAAA==", "int32"));
}

TEST(RoutesOutput, VllmsIsAnNpyFile) {
    for (const std::int64_t num_experts : {256, 512}) {
        const json members = whole(RoutesForm::kNumpy, {1, 2, 255, 4}, num_experts);
        const auto file = base64_decode(members["routed_experts"].get<std::string>());
        ASSERT_TRUE(file);
        const bool is_wide = num_experts > 256;
        const std::string text(file->begin(), file->end());
        const std::size_t num_data = is_wide ? 8 : 4;
        const std::size_t num_header = text.size() - num_data;
        // numpy.lib.format: the magic, the version, the header's length; data at a multiple of 64.
        EXPECT_EQ(text.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
        EXPECT_EQ((*file)[8] + 256U * (*file)[9], num_header - 10);
        EXPECT_EQ(num_header % 64, 0U);
        EXPECT_EQ(text[num_header - 1], '\n');
        const std::string about = is_wide ? "{'descr': '<u2', 'fortran_order': False, "
                                            "'shape': (2, 2, 1), }"
                                          : "{'descr': '|u1', 'fortran_order': False, "
                                            "'shape': (2, 2, 1), }";
        EXPECT_EQ(text.substr(10, about.size()), about);
        EXPECT_EQ(
            text.substr(num_header),
            is_wide ? std::string("\x01\0\x02\0\xff\0\x04\0", 8) : std::string("\x01\x02\xff\x04")
        );
        EXPECT_FALSE(members.contains("routed_experts_start_len"));
    }
}

TEST(RoutesOutput, StreamedPartsHaveTheNewRows) {
    const messages::RouteShape shape{.layers = 2, .per_token = 1, .num_experts = 8};
    RoutesOutput output({.start = 0, .form = RoutesForm::kSmallest, .is_streamed = true}, shape);
    EXPECT_FALSE(output.has_part(/*is_last=*/false));
    output.append(routes(0, {1, 2, 3, 4}, 8));
    ASSERT_TRUE(output.has_part(/*is_last=*/false));
    json part = written(output, 3, /*is_last=*/false);
    EXPECT_EQ(part["routed_experts"]["shape"], json({2, 2, 1}));
    EXPECT_EQ(part["routed_experts_spans"], json::parse(R"([{"epoch":1,"start":0,"end":2}])"));
    EXPECT_FALSE(output.has_part(/*is_last=*/false));
    output.append(routes(2, {5, 6}, 8));
    part = written(output, 4, /*is_last=*/false);
    EXPECT_EQ(part["routed_experts"]["start"], 2);
    EXPECT_EQ(part["routed_experts_spans"], json::parse(R"([{"epoch":1,"start":2,"end":3}])"));
    // The last part has no row of its own.
    ASSERT_TRUE(output.has_part(/*is_last=*/true));
    part = written(output, 4, /*is_last=*/true);
    EXPECT_EQ(
        part["routed_experts"],
        json({{"data", ""}, {"shape", {0, 2, 1}}, {"start", 3}, {"dtype", "uint8"}})
    );
}

// Without the last part the rows of the earlier parts would seem to be complete.
TEST(RoutesOutput, MissingRowsMakeTheLastPartNull) {
    const messages::RouteShape shape{.layers = 2, .per_token = 1, .num_experts = 8};
    for (const RoutesForm form : {RoutesForm::kSglang, RoutesForm::kNumpy, RoutesForm::kEnvelope}) {
        RoutesOutput output({.start = 0, .form = form, .is_streamed = true}, shape);
        output.append(routes(0, {1, 2}, 8));
        written(output, 2, /*is_last=*/false);
        EXPECT_EQ(written(output, 4, /*is_last=*/true)["routed_experts"], json());
    }
}

}  // namespace
}  // namespace pitstop::http
