// Input that violates the protocol: which errors it gets, and that a refusal costs little.
// (round_trip_test.cpp tries damage at random places, cuts at every byte and unknown fields on
// every message.)
#include "base/utf8.h"
#include "messages/all_messages.h"
#include "messages/codec.h"
#include "messages/ranks.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace pitstop::messages {
namespace {

using namespace std::string_literals;

// msgpack written out by hand: just enough for the inputs below.
std::string str(std::string_view text) {
    EXPECT_LT(text.size(), 32U);
    return static_cast<char>(0xa0 | text.size()) + std::string(text);
}
std::string map(std::initializer_list<std::string> entries) {  // keys and values in turn
    EXPECT_LT(entries.size(), 32U);
    std::string bytes(1, static_cast<char>(0x80 | (entries.size() / 2)));
    for (const std::string& entry : entries) bytes += entry;
    return bytes;
}
std::string array(std::initializer_list<std::string> entries) {
    std::string bytes(1, static_cast<char>(0x90 | entries.size()));
    for (const std::string& entry : entries) bytes += entry;
    return bytes;
}
std::string number(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    std::string bytes = "\xcb";
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift);
    return bytes;
}
const std::string kNil = "\xc0";
const std::string kTrue = "\xc3";
const std::string kOne = "\x01";

template <class Message>
Error error_of(std::string body, std::vector<std::string> raw = {}) {
    const Result<Message> result = decode<Message>(
        {std::string(Message::kType), std::move(body), std::move(raw)}, UnknownFields::kRefuse
    );
    EXPECT_FALSE(result) << "was accepted";
    return result ? Error{} : result.error();
}
// The message of an error about a well-formed body.
template <class Message>
std::string refusal(std::string body, std::vector<std::string> raw = {}) {
    const Error error = error_of<Message>(std::move(body), std::move(raw));
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.message;
    return error.message;
}
std::string sampling(std::string_view field, const std::string& value) {
    return map({str("text"), str("x"), str("sampling"), map({str(field), value})});
}

TEST(Malformed, ABodyThatIsNotMsgpack) {
    EXPECT_EQ(error_of<Cancel>("").code, ErrorCode::kMalformed);
    EXPECT_EQ(error_of<Cancel>("\xc1"s).code, ErrorCode::kMalformed) << "never used";
    EXPECT_EQ(error_of<Cancel>("hello, tree").code, ErrorCode::kMalformed);
    const Error after = error_of<Cancel>(map({str("rids"), array({str("a")})}) + "xyz");
    EXPECT_EQ(after.code, ErrorCode::kMalformed);
    EXPECT_EQ(after.message, "cancel: 3 bytes follow the end of the body");
}

TEST(Malformed, ABodyThatIsNotAMap) {
    EXPECT_EQ(refusal<Cancel>(kNil), "cancel: expected a map, got nil");
    EXPECT_EQ(refusal<Cancel>(array({})), "cancel: expected a map, got an array");
    EXPECT_EQ(refusal<Cancel>(map({kOne, kOne})), "cancel: a field name must be a string");
}

TEST(Malformed, ALabelIsOneLineOfText) {
    const auto problem = [](std::string label) {
        return invalid(SetWeightLabel{.call = CallId{1}, .label = std::move(label)});
    };
    EXPECT_FALSE(problem("step 7, Straße"));
    EXPECT_FALSE(problem(std::string(kLabelBytesMax, 'x')));
    EXPECT_TRUE(problem(""));
    EXPECT_TRUE(problem(std::string(kLabelBytesMax + 1, 'x')));
    for (const char c : {'\0', '\n', '\r', '\x1b', '\x7f'}) {
        EXPECT_TRUE(problem(std::string("step") + c)) << int{c};
        UpdateSpec spec;
        spec.source.path = "/somewhere";
        EXPECT_FALSE(invalid(spec));
        spec.label = std::string("step") + c;
        EXPECT_TRUE(invalid(spec)) << int{c};
    }
}

TEST(Malformed, P7_WhatAMachineSaysOfItselfIsShortAndOfOneLine) {
    const RankJoin join{.build = "pitstop 0.1.0", .host = "node7", .settings = {"page-size=16"}};
    EXPECT_EQ(invalid(join), std::nullopt);
    RankJoin wrong = join;
    wrong.host.assign(RankJoin::kNameBytesMax, 'h');
    EXPECT_EQ(invalid(wrong), std::nullopt);
    wrong.host += 'h';
    EXPECT_EQ(invalid(wrong), "host: more than 255 bytes");
    wrong = join;
    wrong.build = "a\nb";
    EXPECT_EQ(invalid(wrong), "build: control characters");
    wrong = join;
    wrong.settings = {std::string(RankJoin::kSettingBytesMax + 1, 's')};
    EXPECT_EQ(invalid(wrong), "settings: one of more than 8192 bytes");
}

TEST(Malformed, P7_WhyAFrontEndRefusedACallIsShortAndOfOneLine) {
    const auto problem = [](std::string why) {
        return invalid(RefusedPart{.why = std::move(why)});
    };
    EXPECT_EQ(problem("http_proc answered 413 to a POST"), std::nullopt);
    EXPECT_EQ(problem(std::string(256, 'x')), std::nullopt);
    EXPECT_EQ(problem(std::string(257, 'x')), "why has 257 bytes; at most 256 are accepted");
    EXPECT_EQ(problem("a\nb"), "why has a control character; it is one line of text");
    EXPECT_EQ(problem(""), "why is empty; give the reason, which the refused call's trainer gets");
}

TEST(Malformed, AnEpochLeavesRoomToCountOn) {
    UpdateSpec spec;
    spec.source.path = "/somewhere";
    spec.epoch = kEpochMax;
    EXPECT_FALSE(invalid(spec));
    for (const std::int64_t epoch :
         {std::int64_t{0}, raw(kEpochMax) + 1, std::numeric_limits<std::int64_t>::max()}) {
        spec.epoch = Epoch{epoch};
        EXPECT_TRUE(invalid(spec)) << epoch;
    }
}

TEST(Malformed, SizesThatTheBytesDoNotHoldAskForNoMemory) {
    for (const char* head :
         {"\xdd\xff\xff\xff\xff",
          "\xdf\xff\xff\xff\xff",
          "\xdb\xff\xff\xff\xff",
          "\xc6\xff\xff\xff\xff",
          "\xc9\xff\xff\xff\xff\x01"}) {
        EXPECT_EQ(error_of<Cancel>(head).code, ErrorCode::kMalformed);
        EXPECT_EQ(error_of<Cancel>("\x81\xa4rids"s + head).code, ErrorCode::kMalformed);
    }
}

TEST(Malformed, NestingIsBounded) {
    for (const char* level : {"\x91", "\x81\xa1k"}) {
        std::string body;
        for (int i = 0; i < 1'000'000; ++i) body += level;
        EXPECT_EQ(error_of<Cancel>(body + kNil).code, ErrorCode::kMalformed);
    }
    std::string just_over;
    for (int i = 0; i <= kDepthMax; ++i) just_over += '\x91';
    EXPECT_EQ(error_of<Cancel>(just_over + kNil).code, ErrorCode::kMalformed);
}

TEST(Malformed, ABodyOverTheLimitIsRefusedUnread) {
    const Error error = error_of<Cancel>(std::string(kBodyBytesMax + 1, '\x90'));
    EXPECT_EQ(error.code, ErrorCode::kTooLarge);
    EXPECT_EQ(error.message, "cancel: a body of 67108865 bytes; at most 67108864 are accepted");
}

TEST(Malformed, AWrongTypeIsNamedWithItsPath) {
    EXPECT_EQ(
        refusal<Cancel>(map({str("rids"), str("a")})),
        "cancel: rids: expected an array, got a string"
    );
    EXPECT_EQ(
        refusal<Cancel>(map({str("rids"), array({str("a"), kOne})})),
        "cancel: rids[1]: expected a string, got an integer"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("top_p", str("half"))),
        "generate: sampling.top_p: expected a number, got a string"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("ignore_eos", kOne)),
        "generate: sampling.ignore_eos: expected a bool, got an integer"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("top_k", number(1.0))),
        "generate: sampling.top_k: expected an integer, got a float"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("seed", "\xff")),
        "generate: sampling.seed: expected an integer of at least 0, got an integer"
    );
    EXPECT_EQ(
        refusal<Generate>(map({str("text"), "\xc4\x01x"s})),
        "generate: text: expected a string, got bytes"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("logit_bias", map({kOne, str("no")}))),
        "generate: sampling.logit_bias[0]: expected a number, got a string"
    );
    EXPECT_EQ(
        refusal<Generate>(map({str("kv_tolerance"), str("some")})),
        "generate: kv_tolerance: 'some' is not one of never, max_lag, keep"
    );
    EXPECT_EQ(
        refusal<Generate>(map({str("sampling"), array({})})),
        "generate: sampling: expected a map, got an array"
    );
}

TEST(Malformed, NumbersThatDoNotFit) {
    EXPECT_EQ(
        refusal<Generate>(map({str("input_ids"), array({"\xce\x80\x00\x00\x00"s})})),
        "generate: input_ids[0]: 2147483648 does not fit into 32 bits"
    );
    EXPECT_EQ(
        refusal<Generate>(map({str("priority"), "\xcf\x80\x00\x00\x00\x00\x00\x00\x00"s})),
        "generate: priority: 9223372036854775808 does not fit into 63 bits"
    );
}

TEST(Malformed, TextThatIsNotUtf8) {
    const std::string_view bad[] = {
        "\x80",              // a tail alone
        "\xc3",              // cut
        "\xc0\xaf",          // overlong '/'
        "\xe0\x80\xaf",      // overlong
        "\xed\xa0\x80",      // a surrogate
        "\xf0\x80\x80\xaf",  // overlong
        "\xf4\x90\x80\x80",  // past U+10FFFF
        "\xf5\x80\x80\x80",  // not a lead byte
        "\xff",
    };
    for (const std::string_view text : bad) {
        EXPECT_EQ(
            refusal<Generate>(map({str("text"), str("ok" + std::string(text))})),
            "generate: text: not valid UTF-8"
        );
    }
    // The first and last of each length are fine, and so is a NUL.
    const std::string good =
        "\x00\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"
        "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"s;
    Frames frames{"generate", map({str("text"), str(good)}), {}};
    const Result<Generate> result = decode<Generate>(frames, UnknownFields::kRefuse);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(*result->text, good);
    // An unknown field's name may be anything; the error must still be text.
    EXPECT_NE(
        refusal<Generate>(map({str("\xff\xfe"), kOne})).find("(not UTF-8)"), std::string::npos
    );
    // An error that quotes a long text must cut the text at the end of a character.
    for (std::size_t num = 60; num < 70; ++num) {
        const std::string text =  // "str 8", with its length in a byte
            "\xd9" + std::string(1, static_cast<char>(num + 4)) + std::string(num, 'a') +
            "\xf0\x90\x80\x80";
        for (const std::string& why :
             {refusal<Generate>(map({text, kOne})),
              refusal<Generate>(map({str("kv_tolerance"), text}))}) {
            EXPECT_NE(why.find("aaa"), std::string::npos) << why;
            EXPECT_TRUE(is_utf8(why)) << num;
        }
    }
}

TEST(Malformed, FieldsAndKeysThatAppearTwice) {
    EXPECT_EQ(
        refusal<Generate>(map({str("text"), str("a"), str("text"), str("b")})),
        "generate: field 'text' appears twice"
    );
    EXPECT_EQ(
        refusal<Generate>(sampling("logit_bias", map({kOne, kOne, kOne, kOne}))),
        "generate: sampling.logit_bias[1]: appears twice"
    );
}

TEST(Malformed, NilIsAnAbsentOptionalAndNothingElse) {
    const Frames frames{
        "generate", map({str("text"), str("a"), str("replica"), kNil, str("input_ids"), kNil}), {}};
    const Result<Generate> result = decode<Generate>(frames, UnknownFields::kRefuse);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_FALSE(result->replica.has_value());
    EXPECT_EQ(
        refusal<Generate>(map({str("stream"), kNil})), "generate: stream: expected a bool, got nil"
    );
}

TEST(Malformed, RawFramesThatAreNotThere) {
    const auto plan = [](const std::string& frame) { return map({str("tokens"), frame}); };
    EXPECT_EQ(
        refusal<StepPlan>(plan(kOne), {"abcd"}),
        "step_plan: tokens: raw frame 1 is named; the message has 1 of them"
    );
    EXPECT_EQ(
        refusal<StepPlan>(plan("\xff"), {"abcd"}),
        "step_plan: tokens: raw frame -1 is named; the message has 1 of them"
    );
    EXPECT_EQ(
        refusal<StepPlan>(plan("\x00"s), {"abcde"}),
        "step_plan: tokens: raw frame 0 has 5 bytes, not a multiple of 4"
    );
    EXPECT_EQ(
        refusal<StepPlan>(plan(array({kOne})), {"abcd"}),
        "step_plan: tokens: expected an integer, got an array"
    );
}

TEST(Malformed, PartsOfRawFramesThatAreNotThere) {
    const auto outputs = [](const std::string& place) {
        const std::string routes = map({str("experts"), place});
        return map({str("chunks"), array({map({str("routes"), routes})})});
    };
    const auto small = [](int value) { return std::string(1, static_cast<char>(value)); };
    const auto place = [&](int frame, int begin, int count) {
        return array({small(frame), small(begin), small(count)});
    };
    const std::string where = "outputs: chunks[0].routes.experts: ";
    const Frames good{"outputs", outputs(place(0, 1, 3)), {"abcd"}};
    const Result<Outputs> read = decode<Outputs>(good, UnknownFields::kRefuse);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(
        read->chunks.at(0).routes->experts.values, (std::vector<std::uint8_t>{'b', 'c', 'd'})
    );
    EXPECT_EQ(
        refusal<Outputs>(outputs(place(1, 0, 1)), {"abcd"}),
        where + "raw frame 1 is named; the message has 1 of them"
    );
    for (const auto& [begin, count] : {std::pair{0, 5}, {3, 2}, {5, 0}, {-1, 1}, {1, -1}}) {
        EXPECT_EQ(
            refusal<Outputs>(outputs(place(0, begin, count)), {"abcd"}),
            where + fmt::format(
                        "{} elements from byte {} of raw frame 0 are named; the frame has 4 bytes",
                        count,
                        begin
                    )
        );
    }
    EXPECT_EQ(
        refusal<Outputs>(outputs(array({kOne})), {"abcd"}),
        where + "expected [frame, begin, count], got 1 numbers"
    );
    EXPECT_EQ(
        refusal<Outputs>(outputs(kOne), {"abcd"}), where + "expected an array, got an integer"
    );
    const auto chunk = [&](const std::string& one) {
        return map({str("routes"), map({str("experts"), one})});
    };
    const std::string twice = array({chunk(place(0, 0, 3)), chunk(place(0, 1, 3))});
    EXPECT_EQ(
        refusal<Outputs>(map({str("chunks"), twice}), {"abcd"}),
        "outputs: chunks[1].routes.experts: the parts up to this one have more bytes than the raw "
        "frames"
    );
}

TEST(Malformed, ValuesOutOfRangeSayWhatIsAccepted) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    for (const double value : {kNan, -0.5, kInf, -kInf}) {
        EXPECT_NE(
            refusal<Generate>(sampling("temperature", number(value)))
                .find("accepted is a finite number of 0 or more"),
            std::string::npos
        );
    }
    for (const double value : {kNan, 0.0, 1.5, -1.0}) {
        EXPECT_NE(
            refusal<Generate>(sampling("top_p", number(value))).find("accepted is (0, 1]"),
            std::string::npos
        );
    }
    for (const char* field :
         {"min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}) {
        for (const double value : {kNan, 2.5, -2.5}) {
            EXPECT_NE(
                refusal<Generate>(sampling(field, number(value))).find("accepted is "),
                std::string::npos
            ) << field;
        }
    }
    EXPECT_NE(
        refusal<Generate>(sampling("max_new_tokens", "\xff")).find("is -1"), std::string::npos
    );
    EXPECT_NE(
        refusal<Generate>(sampling("num_output_in_prompt", "\xff")).find("is -1"), std::string::npos
    );
    EXPECT_NE(refusal<Generate>(sampling("top_k", "\x00"s)).find("top_k is 0"), std::string::npos);
    EXPECT_NE(refusal<Generate>(sampling("top_k", "\xff")).find("top_k is -1"), std::string::npos);
    EXPECT_NE(
        refusal<Generate>(sampling("stop", array({str("")}))).find("empty text"), std::string::npos
    );
    EXPECT_NE(
        refusal<Generate>(sampling("logit_bias", map({"\xff", kOne}))).find("names token -1"),
        std::string::npos
    );
}

TEST(Malformed, APromptIsExactlyOneThingAndNotEmpty) {
    EXPECT_NE(refusal<Generate>(map({})).find("neither"), std::string::npos);
    EXPECT_NE(refusal<Generate>(map({str("text"), str("")})).find("empty"), std::string::npos);
    EXPECT_NE(
        refusal<Generate>(map({str("input_ids"), array({})})).find("empty"), std::string::npos
    );
    EXPECT_NE(
        refusal<Generate>(map({str("text"), str("a"), str("input_ids"), array({kOne})}))
            .find("both"),
        std::string::npos
    );
}

TEST(Malformed, PlansWhoseArraysDisagreeWithTheirRows) {
    StepPlan good;
    good.rows = {{.num_new = 2, .num_pages = 1, .num_scored = 1}};
    good.tokens.values.resize(2);
    good.pages.values.resize(1);
    good.targets.values.resize(1);
    const auto problem = [&](auto&& change) {
        StepPlan plan = good;
        change(plan);
        return invalid(plan).value_or("");
    };
    EXPECT_EQ(problem([](StepPlan&) {}), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows.clear(); }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows.resize(StepPlan::kRowsMax + 1); }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.tokens.values.resize(3); }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.pages.values.resize(2); }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.targets.values.clear(); }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows[0].num_new = 0; }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows[0].begin = -1; }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows[0].num_scored = 3; }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows[0].output_index = -1; }), "");
    EXPECT_NE(problem([](StepPlan& p) { p.rows[0].takes_sampled = true; }), "");
    EXPECT_NE(
        problem([](StepPlan& p) { p.rows[0].num_new = std::numeric_limits<std::int64_t>::max(); }),
        ""
    );
    EXPECT_NE(
        problem([](StepPlan& p) { p.rows[0].num_pages = std::numeric_limits<std::int64_t>::max(); }
        ),
        ""
    );
}

// The reader of a plan adds these numbers: none may be so large that a sum overflows.
TEST(Malformed, PositionsOfAPlanLeaveRoomToAddTo) {
    const auto problem = [](std::int64_t begin, std::int64_t output_index) {
        StepPlan plan;
        plan.rows = {{.begin = begin, .num_new = 2, .num_pages = 1, .output_index = output_index}};
        plan.tokens.values.resize(2);
        plan.pages.values.resize(1);
        return invalid(plan).value_or("");
    };
    constexpr std::int64_t kMost =
        (std::int64_t{1} << 31) - 1;  // positions are int32 in the worker
    constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(problem(kMost - 2, kMost), "");
    EXPECT_NE(problem(kMost - 1, 0).find("begins at 2147483646"), std::string::npos);
    EXPECT_NE(problem(kHuge, 0).find("begins at"), std::string::npos);
    EXPECT_NE(problem(0, kMost + 1).find("output_index is 2147483648"), std::string::npos);
    EXPECT_NE(problem(0, kHuge).find("output_index is"), std::string::npos);
}

TEST(Peek, FindsWhatAnAnswerNeedsInAMessageThatIsRefused) {
    const Frames frames{
        "generate", map({str("rid"), str("r-1"), str("call"), "\x07", str("wing"), kTrue}), {}};
    EXPECT_EQ(peek_string(frames, "rid"), "r-1");
    EXPECT_EQ(peek_uint(frames, "call"), 7U);
    EXPECT_EQ(peek_string(frames, "wing"), "");
    EXPECT_EQ(peek_uint(frames, "rid"), 0U);
    const Frames nested{
        "update_weights", map({str("update"), map({str("adapter"), str("a")})}), {}};
    EXPECT_EQ(peek_string(nested, "update", "adapter"), "a");
    EXPECT_EQ(peek_string(nested, "update", "label"), "");
    EXPECT_EQ(peek_string(nested, "adapter"), "");
}

TEST(Peek, NeverFails) {
    for (const std::string& body :
         {""s,
          "\xc1"s,
          "\x81"s,
          kNil,
          array({}),
          map({kOne, kOne}),
          map({str("rid"), str("\xff")}),
          map({str("rid"), "\xff"})}) {
        EXPECT_EQ(peek_string({"generate", body, {}}, "rid"), "");
        EXPECT_EQ(peek_uint({"generate", body, {}}, "rid"), 0U);
        EXPECT_EQ(peek_string({"generate", body, {}}, "rid", "a"), "");
        EXPECT_EQ(peek_string({"generate", map({str("update"), body}), {}}, "update", "rid"), "");
    }
}

}  // namespace
}  // namespace pitstop::messages
