#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop {
namespace {

TEST(Utf8Prefix, EndsWithAWholeCharacter) {
    // Characters of 1, 2, 3, 4 and 1 bytes.
    const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8f\x81z";
    const std::size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11};
    for (std::size_t num = 0; num < std::size(ends); ++num) {
        const std::string_view prefix = utf8_prefix(text, num);
        EXPECT_EQ(prefix, std::string_view(text).substr(0, ends[num])) << num;
        EXPECT_TRUE(is_utf8(prefix)) << num;
    }
}

}  // namespace
}  // namespace pitstop
