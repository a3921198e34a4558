#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace pitstop::text {
namespace {

TEST(Utf8, EveryCodePointIsValidAndComesBack) {
    for (char32_t c = 0; c <= kCodePointMax; ++c) {
        if (c >= 0xd800 && c <= 0xdfff) continue;
        std::string text;
        append_utf8(c, text);
        ASSERT_FALSE(find_invalid_utf8(text)) << std::hex << static_cast<std::uint32_t>(c);
        ASSERT_EQ(text.size(), utf8_len(text[0]));
        std::size_t pos = 0;
        ASSERT_EQ(next_code_point(text, pos), c);
        ASSERT_EQ(pos, text.size());
    }
}

TEST(Utf8, TheFirstBadByteIsNamed) {
    using namespace std::string_literals;
    EXPECT_EQ(find_invalid_utf8("\x80"), 0u);
    EXPECT_EQ(find_invalid_utf8("abc\xff"), 3u);
    EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);              // a longer form of '/'
    EXPECT_EQ(find_invalid_utf8("\xe0\x80\xaf"), 0u);          // the same
    EXPECT_EQ(find_invalid_utf8("ab\xed\xa0\x80"), 2u);        // a surrogate
    EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);      // beyond 10FFFF
    EXPECT_EQ(find_invalid_utf8("0123456789\xe4\xb8"), 10u);   // cut short
    EXPECT_EQ(find_invalid_utf8("\xe4\xb8\xad\xe4\x41"), 3u);  // interrupted
    EXPECT_EQ(find_invalid_utf8("\0\x7f"s), std::nullopt);
    EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
}

std::string lossy(std::string_view bytes) {
    LossyUtf8 utf8;
    std::string out;
    utf8.push(bytes, out);
    utf8.finish(out);
    return out;
}

// The cases are those of Unicode 16, section 3.9, tables 3-8 to 3-11.
TEST(LossyUtf8, ReplacesMaximalParts) {
    const std::string r(kReplacementCharacter);
    EXPECT_EQ(lossy("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(lossy("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(lossy("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), r + r + r + r + r + "A" + r + r + "B");
    EXPECT_EQ(lossy("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
}

TEST(LossyUtf8, DoesNotDependOnHowTheBytesAreCut) {
    std::mt19937 random(1);
    constexpr std::string_view kBytes = "aZ\x80\xbf\xc2\xe1\x9f\xed\xa0\xf0\x90\xf4\x8f\xff";
    for (int round = 0; round < 20000; ++round) {
        std::string bytes;
        for (std::size_t len = random() % 12; bytes.size() < len;)
            bytes += kBytes[random() % kBytes.size()];
        LossyUtf8 utf8;
        std::string out;
        for (std::size_t pos = 0; pos < bytes.size();) {
            const std::size_t len = 1 + random() % 3;
            utf8.push(std::string_view(bytes).substr(pos, len), out);
            ASSERT_FALSE(find_invalid_utf8(out));
            pos += len;
        }
        utf8.finish(out);
        ASSERT_EQ(out, lossy(bytes));
    }
}

}  // namespace
}  // namespace pitstop::text
