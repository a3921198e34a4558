// The messages of gpt-oss's output, whole and in pieces.
#include "http_proc/format/harmony.h"

#include "tests/http_proc/turn_printing.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

using Start = ThinkingParser::Start;
using Reads = HarmonyParser::Reads;

TurnPieces in_pieces(Reads reads, Start start, std::string_view output, std::size_t len) {
    HarmonyParser parser(reads, start);
    TurnPieces pieces;
    for (std::size_t at = 0; at < output.size(); at += len)
        pieces.append(parser.append(output.substr(at, len)));
    pieces.append(parser.finish());
    return pieces;
}

std::vector<TurnItem> parse(
    std::string_view output, Reads reads = {}, Start start = Start::kOutside
) {
    const TurnPieces whole = in_pieces(reads, start, output, output.size() + 1);
    for (std::size_t len = 1; len < 40; ++len)
        EXPECT_EQ(in_pieces(reads, start, output, len).list(), whole.list()) << len;
    return whole_items(whole);
}

TurnItem text(std::string_view words) {
    return {.kind = TurnItem::Kind::kText, .text = std::string(words)};
}
TurnItem thinking(std::string_view words) {
    return {.kind = TurnItem::Kind::kThinking, .text = std::string(words)};
}
TurnItem call(std::string_view name, std::string_view arguments) {
    return {
        .kind = TurnItem::Kind::kCall,
        .call = {.name = std::string(name), .arguments = std::string(arguments)}};
}
using Items = std::vector<TurnItem>;

constexpr std::string_view kTurn =
    "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>One moment.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
    "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>";

TEST(Harmony, ATurnHasThinkingTextAndCallsInTheirOrder) {
    EXPECT_EQ(
        parse(kTurn),
        (Items{thinking("Look it up."), text("One moment."), call("weather", R"({"city":"Paris"})")}
        )
    );
    EXPECT_EQ(
        parse("<|channel|>analysis<|message|>a <|x|> b<|end|><|start|>assistant<|channel|>final"
              "<|message|> It is 5 <|.<|return|>"),
        (Items{thinking("a <|x|> b"), text(" It is 5 <|.")})
    );
    EXPECT_EQ(
        parse("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis"
              "<|message|>b<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|>"
              "<|start|>assistant<|channel|>final<|message|>d"),
        (Items{thinking("a\nb"), text("c\nd")})
    );
}

TEST(Harmony, ARecipientMayBeInEitherPlace) {
    EXPECT_EQ(
        parse("<|start|>assistant to=functions.f<|channel|>commentary json<|message|> {} <|call|>"),
        Items{call("f", "{}")}
    );
    EXPECT_EQ(
        parse("<|channel|>analysis to=browser.search code<|message|>{\"q\": [1, 2]}<|call|>"),
        Items{call("browser.search", R"({"q":[1,2]})")}
    );
    EXPECT_EQ(parse("<|channel|>commentary to=user<|message|>Hi"), Items{text("Hi")});
}

// A call's end token is not part of the text; it ends the turn.
TEST(Harmony, ALastMessageMayLackItsMarker) {
    const std::string open(kTurn.substr(0, kTurn.size() - std::string_view("<|call|>").size()));
    EXPECT_EQ(parse(open), parse(kTurn));
    EXPECT_EQ(parse("<|channel|>final<|message|>So <|en"), Items{text("So <|en")});
    EXPECT_EQ(parse("<|channel|>analysis<|message|>So"), Items{thinking("So")});
}

TEST(Harmony, OutputThatIsNoMessageOrNotLookedForIsTextAsItIsWritten) {
    for (const std::string_view output :
         {"It is noon.",
          "<|channel|>anal",
          "<|channel|>secret<|message|>a<|end|>",
          "<|start|>user<|message|>a<|end|>",
          "<|channel|>commentary to=a,b<|message|>{}<|call|>",
          "<|channel|>commentary to=functions.f<|message|>{\"a\": 1",
          "<|channel|>commentary to=functions.f<|message|>{\"a\": nope}<|call|>",
          "<|channel|>commentary to=functions.f<|message|>{} x<|call|>",
          "<|channel|>commentary to=python<|message|>print(1)<|call|>",
          "<|channel|>final<|end|>",
          "<|end|>",
          "<|message|>"}) {
        EXPECT_EQ(parse(output), Items{text(output)});
    }
    const std::string long_header = "<|channel|>" + std::string(5000, 'x') + "<|message|>";
    EXPECT_EQ(parse(long_header), Items{text(long_header)});
    EXPECT_EQ(
        parse(kTurn, {.thinking = true, .calls = false}),
        (Items{
            thinking("Look it up."),
            text("One moment.<|start|>assistant<|channel|>commentary to=functions.weather "
                 "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>")})
    );
    EXPECT_EQ(
        parse(kTurn, {.thinking = false, .calls = true}),
        (Items{
            text("<|channel|>analysis<|message|>Look it up.<|end|>One moment."),
            call("weather", R"({"city":"Paris"})")})
    );
}

TEST(Harmony, AMalformedCallHidesNoneThatFollows) {
    EXPECT_EQ(
        parse("<|channel|>commentary to=f<|message|>{oops}<|call|><|start|>assistant to=g"
              "<|channel|>commentary<|message|>{}<|call|>"),
        (Items{text("<|channel|>commentary to=f<|message|>{oops}<|call|>"), call("g", "{}")})
    );
}

TEST(Harmony, TheOutputMayBeginInsideTheThinkingOfItsPrompt) {
    EXPECT_EQ(
        parse("so.<|end|><|start|>assistant<|channel|>final<|message|>5", {}, Start::kInside),
        (Items{thinking("so."), text("5")})
    );
}

TEST(Harmony, TheParserKnowsWhereTheOutputIs) {
    using At = HarmonyParser::At;
    HarmonyParser parser({});
    const auto at_after = [&](std::string_view piece) {
        static_cast<void>(parser.append(piece));
        return parser.at();
    };
    EXPECT_EQ(at_after("<|channel|>"), At::kHeader);
    EXPECT_EQ(at_after("analysis"), At::kHeader);
    EXPECT_EQ(at_after("<|message|>"), At::kThinking);
    EXPECT_EQ(at_after("a"), At::kThinking);
    EXPECT_EQ(at_after("<|end|>"), At::kOther);
    EXPECT_EQ(at_after("<|start|>assistant<|channel|>final<|message|>"), At::kOther);
}

}  // namespace
}  // namespace pitstop::http
