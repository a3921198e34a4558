#include "http_proc/openai/text_offsets.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

std::vector<std::int64_t> offsets_of(const std::vector<std::string_view>& tokens) {
    TextOffsets offsets;
    std::vector<std::int64_t> all;
    for (const std::string_view bytes : tokens) all.push_back(offsets.next(bytes));
    return all;
}

using Offsets = std::vector<std::int64_t>;

TEST(TextOffsets, ArePlacesInCharacters) {
    EXPECT_EQ(offsets_of({"a", "bc", " é", "日本", "x"}), (Offsets{0, 1, 3, 5, 7}));
    EXPECT_EQ(offsets_of({"", "a", "", "b"}), (Offsets{0, 0, 1, 1}));
}

TEST(TextOffsets, PartsOfACharacterShareItsPlace) {
    EXPECT_EQ(offsets_of({"a", "\xe6", "\x97", "\xa5", "x"}), (Offsets{0, 1, 1, 1, 2}));
    EXPECT_EQ(offsets_of({"a\xf0\x9f", "\x99\x82", "zz"}), (Offsets{0, 1, 2}));
    EXPECT_EQ(offsets_of({"\xe6\x97", "\xa5\xe6", "\x9c\xac"}), (Offsets{0, 0, 1}));
    EXPECT_EQ(offsets_of({"\xef\xbf", "\xbd", "a"}), (Offsets{0, 0, 1}));  // a literal U+FFFD
}

// Invalid bytes become one U+FFFD per part, as in the text.
TEST(TextOffsets, BytesThatAreNoCharacterTakeThePlacesOfTheirReplacements) {
    EXPECT_EQ(offsets_of({"\xe6", "abc", "d"}), (Offsets{0, 1, 4}));
    EXPECT_EQ(offsets_of({"\xe6\x97", "\xe6\x97\xa5", "d"}), (Offsets{0, 1, 2}));
    EXPECT_EQ(offsets_of({"\x80", "\x80", "d"}), (Offsets{0, 1, 2}));
    EXPECT_EQ(offsets_of({"\xe0", "\x80", "d"}), (Offsets{0, 1, 2}));
}

}  // namespace
}  // namespace pitstop::http
