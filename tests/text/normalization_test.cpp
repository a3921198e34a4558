#include "base/time.h"
#include "text/normalization_form.h"
#include "text/unicode.h"

#include <gtest/gtest.h>

namespace pitstop::text {
namespace {

std::string normal(NormalizationForm form, std::string text) {
    normalize(form, text);
    return text;
}

// The values are those of the reference implementation, tokenizers 0.23.
TEST(NormalizationForms, KnowUnicode9AndNothingNewer) {
    using enum NormalizationForm;
    EXPECT_EQ(normal(kNfc, "e\u0301 a\u030a q\u0307\u0323"), "\u00e9 \u00e5 q\u0323\u0307");
    EXPECT_EQ(normal(kNfd, "\u00e9\uac01"), "e\u0301\u1100\u1161\u11a8");
    EXPECT_EQ(normal(kNfkc, "\ufb01\uff21\u2460"), "fiA1");
    EXPECT_EQ(normal(kNfkd, "\u1e9b\u0323"), "s\u0323\u0307");
    EXPECT_EQ(normal(kNfkc, "\u32ff"), "\u32ff");         // Unicode 12: a square era name
    EXPECT_EQ(normal(kNfd, "\U00011938"), "\U00011938");  // Unicode 13: has a decomposition
    EXPECT_EQ(normal(kNfc, "\U00011935\U00011930"), "\U00011935\U00011930");
    EXPECT_EQ(normal(kNfc, "\U000105d2\u0307"), "\U000105d2\u0307");  // Unicode 16: composes
    EXPECT_EQ(normal(kNfc, "a\u0345\u08ca"), "a\u0345\u08ca");  // Unicode 14: a mark of class 230
    EXPECT_EQ(normal(kNfc, "\u1112\u1161\u11ab"), "\ud55c");
}

// Sorting marks by exchanging neighbours would take minutes here.
TEST(NormalizationForms, TakeLinearTimeOverNothingButMarks) {
    std::string marks = "a";
    for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
    for (const auto form :
         {NormalizationForm::kNfc, NormalizationForm::kNfd, NormalizationForm::kNfkc}) {
        std::string text = marks;
        const TimePoint begin = Clock::now();
        normalize(form, text);
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
        EXPECT_EQ(normal(form, text), text);
    }
}

TEST(Lowercase, IsRustsWithoutContext) {
    const auto lower = [](char32_t c) {
        std::string out;
        append_lowercase(c, out);
        return out;
    };
    EXPECT_EQ(lower(U'A'), "a");
    EXPECT_EQ(lower(U'\u00c9'), "\u00e9");
    EXPECT_EQ(lower(U'\u0130'), "i\u0307");
    EXPECT_EQ(lower(U'\u03a3'), "\u03c3");  // not the final sigma
    EXPECT_EQ(lower(U'\u1e9e'), "\u00df");
    EXPECT_EQ(lower(U'\u01c5'), "\u01c6");
    EXPECT_EQ(lower(U'\U00016ea0'), "\U00016ebb");
    EXPECT_EQ(lower(U'\u4e2d'), "\u4e2d");
}

TEST(CodePointSets, AreSets) {
    const CodePointSet some({{'a', 'f'}, {'x', 'z'}, {'d', 'h'}});
    EXPECT_EQ(some, CodePointSet({{'x', 'z'}, {'a', 'h'}}));
    EXPECT_EQ(some.complement().complement(), some);
    EXPECT_TRUE(some.intersect(some.complement()).is_empty());
    EXPECT_FALSE(some.complement().contains(0xd800));
    EXPECT_EQ(some.intersect(CodePointSet({{'g', 'x'}})), CodePointSet({{'g', 'h'}, {'x', 'x'}}));
    EXPECT_TRUE(find_property("Lu")->contains('A'));
    EXPECT_EQ(find_property("Letter"), find_property("l"));
    EXPECT_EQ(find_property("White_Space"), white_space_set());
    EXPECT_FALSE(find_property("Klingon"));
    EXPECT_FALSE(find_property(""));
    for (char32_t c = 0; c < 0x4000; ++c)
        EXPECT_EQ(is_white_space(c), white_space_set().contains(c));
}

}  // namespace
}  // namespace pitstop::text
