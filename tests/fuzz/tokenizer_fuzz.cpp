// Random tokenizers and random texts. The first byte selects:
//
//   '0'  a tokenizer.json, whole
//   '1'  a line each with a normalizer, a pre-tokenizer, a post-processor and a decoder, around a
//        small model; then a text
//   '2'  a text for the demo model's tokenizer, whose decoder must give back what was encoded
//
// Any file is read or refused. The ids of any text decode to UTF-8, token by token as all at once.
#include "base/check.h"
#include "base/utf8.h"
#include "tests/source_dir.h"
#include "text/incremental_decoder.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {
namespace {

constexpr std::string_view kText = " A b\xcc\x81<s> 12\n\xe4\xbd\xa0  Hello's";
constexpr std::string_view kModel =
    R"({"type":"BPE","unk_token":"u","vocab":{"u":0,"a":1,"b":2,"c":3,"1":4,"A":5,"\u2581":6,)"
    R"("\u0120":7,"ab":8,"abc":9,"\u2581a":10,"\u0120a":11,"e":12},)"
    R"("merges":["a b","ab c","\u2581 a","\u0120 a"]})";

std::string decoded_in_pieces(
    const std::shared_ptr<const text::Tokenizer>& tokenizer, std::span<const TokenId> ids
) {
    text::IncrementalDecoder decoder(
        tokenizer, {.skip_special = text::SkipSpecial::kNo}, std::span<const TokenId>()
    );
    std::string text;
    for (const TokenId id : ids) {
        if (!decoder.push(id, text)) return {};
    }
    if (!decoder.finish(text)) return {};
    return text;
}

// Encodes, and decodes back.
void use(const std::shared_ptr<const text::Tokenizer>& tokenizer, std::string_view text) {
    for (const text::AddSpecial add_special : {text::AddSpecial::kNo, text::AddSpecial::kYes}) {
        const auto ids = tokenizer->encode(text, add_special);
        CHECK(ids || !ids.error().message.empty());
        if (!ids) return;
        const auto back = tokenizer->decode(*ids, text::SkipSpecial::kNo);
        if (!back) return;
        CHECK(is_utf8(*back));
        CHECK(decoded_in_pieces(tokenizer, *ids) == *back);
    }
}

void parse_and_use(std::string_view json, std::string_view text) {
    const auto tokenizer = text::Tokenizer::parse(json);
    if (tokenizer) {
        use(*tokenizer, text);
    } else {
        CHECK(!tokenizer.error().message.empty());
    }
}

void use_components(std::string_view text) {
    static constexpr std::array<std::string_view, 4> kNames{
        "normalizer", "pre_tokenizer", "post_processor", "decoder"};
    std::string json = R"({"version":"1.0","added_tokens":[{"id":13,"content":"<s>",)"
                       R"("single_word":false,"lstrip":false,"rstrip":true,"normalized":true,)"
                       R"("special":true}])";
    for (const std::string_view name : kNames) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view component = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        json.append(",\"").append(name).append("\":");
        json.append(component.empty() ? "null" : component);
    }
    json.append(",\"model\":").append(kModel).append("}");
    parse_and_use(json, text);
}

void encode_with_demo(std::string_view text) {
    static const auto demo = text::Tokenizer::load(source_dir() + "/tests/data/tokenizers/demo");
    CHECK(demo);
    use(*demo, text);
    if (!is_utf8(text)) return;
    // The demo tokenizer's only normalizer is NFC, and each byte has a token.
    const auto ids = (*demo)->encode(text, text::AddSpecial::kNo);
    CHECK(ids);
    const auto back = (*demo)->decode(*ids, text::SkipSpecial::kNo);
    CHECK(back);
    const auto again = (*demo)->encode(*back, text::AddSpecial::kNo);
    CHECK(again);
    const auto same = (*demo)->decode(*again, text::SkipSpecial::kNo);
    CHECK(same);
    CHECK(*same == *back);
}

void fuzz(std::uint8_t which, std::string_view text) {
    switch (static_cast<std::uint8_t>(which - '0') % 3) {
        case 0:
            parse_and_use(text, kText);
            break;
        case 1:
            use_components(text);
            break;
        default:
            encode_with_demo(text);
    }
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    pitstop::fuzz(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
    return 0;
}
