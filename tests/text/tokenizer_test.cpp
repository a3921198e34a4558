#include "text/tokenizer.h"

#include "tests/text/tokenizer_dirs.h"
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>
#include <thread>

namespace pitstop::text {
namespace {

std::shared_ptr<const Tokenizer> demo() {
    auto loaded = Tokenizer::load(demo_tokenizer_dir());
    EXPECT_TRUE(loaded) << loaded.error().message;
    return *loaded;
}

TEST(Tokenizer, TextThatIsNotUtf8IsAnErrorThatNamesTheByte) {
    const auto ids = demo()->encode("Once upon \xe4\xb8 a", AddSpecial::kNo);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(ids.error().message, "the text is not valid UTF-8 at byte 10 of 14");
}

// A thread's cache forgets entries and is shared by calls; neither may change an encoding.
TEST(Tokenizer, AnEncodingDoesNotDependOnWhatWasEncodedBefore) {
    const auto tokenizer = demo();
    std::mt19937 random(31);
    const auto word = [&] {
        std::string text;
        for (std::size_t n = 1 + random() % 40; n > 0; --n)
            text.push_back(static_cast<char>('a' + random() % 26));
        return text;
    };
    std::vector<std::string> words;
    for (int i = 0; i < 60'000; ++i) words.push_back(" " + word());
    for (const std::string& text : words) ASSERT_TRUE(tokenizer->encode(text, AddSpecial::kNo));
    const auto fresh = demo();
    for (int i = 0; i < 2000; ++i) {
        const std::string& text = words[random() % words.size()];
        EXPECT_EQ(*tokenizer->encode(text, AddSpecial::kNo), *fresh->encode(text, AddSpecial::kNo));
    }
}

TEST(Tokenizer, ThreadsMayShareIt) {
    const auto tokenizer = demo();
    const std::string text =
        "Once upon a time, there was a little girl named Lily. She loved to play outside!\n";
    const auto expected = *tokenizer->encode(text, AddSpecial::kYes);
    std::vector<std::thread> threads;
    std::atomic<int> num_wrong = 0;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 200; ++i) {
                const std::string own = text + std::to_string(t * 1000 + i);
                const auto ids = tokenizer->encode(own, AddSpecial::kYes);
                const auto same = tokenizer->encode(text, AddSpecial::kYes);
                if (!ids || *tokenizer->decode(*ids, SkipSpecial::kYes) != own || *same != expected)
                    ++num_wrong;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(num_wrong, 0);
}

// The CPU seconds of this thread for one encoding.
double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
    const auto seconds = [] {
        std::timespec now{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    };
    const double begin = seconds();
    EXPECT_TRUE(tokenizer.encode(text, AddSpecial::kNo));
    return seconds() - begin;
}

// 8 times the text takes 8 times as long in linear time, and 64 times as long in quadratic time.
// The texts are single pieces, or single runs of a pattern, for which quadratic code would take
// minutes. Other work on the machine lengthens single measurements, so the least of some ratios
// counts.
TEST(Tokenizer, LongRunsTakeLinearTime) {
    constexpr std::size_t kShort = 12'500;
    constexpr double kRatioMax = 24;
    constexpr int kTriesMax = 8;
    for (const std::string& name : tokenizer_names()) {
        const auto tokenizer = Tokenizer::load(tokenizer_dir(name));
        ASSERT_TRUE(tokenizer) << tokenizer.error().message;
        for (const std::string unit :
             {"antidisestablishmentarianism", "a", " ", "\n", "1", "=", "<"}) {
            std::string run;
            while (run.size() < 8 * kShort) run += unit;
            double least = std::numeric_limits<double>::max();
            for (int i = 0; i < kTriesMax && least > kRatioMax; ++i) {
                const double brief = seconds_to_encode(**tokenizer, run.substr(0, kShort));
                least = std::min(least, seconds_to_encode(**tokenizer, run) / brief);
            }
            EXPECT_LT(least, kRatioMax) << name << " " << unit;
        }
    }
}

TEST(Tokenizer, RandomTextComesBack) {
    const auto tokenizer = demo();
    std::mt19937 random(33);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (std::size_t n = random() % 30; n > 0; --n) {
            // CJK and ASCII: NFC leaves them as they are.
            const auto c = random() % 3 == 0 ? 0x4e00 + random() % 0x5000 : random() % 0x80;
            append_utf8(static_cast<char32_t>(c), text);
        }
        const auto ids = tokenizer->encode(text, AddSpecial::kNo);
        ASSERT_TRUE(ids);
        EXPECT_EQ(*tokenizer->decode(*ids, SkipSpecial::kNo), text);
    }
}

// Decoding a single token may lose a part of a character, and the space at a text's beginning.
TEST(Tokenizer, TheBytesThatTokensAddJoinToTheText) {
    for (const std::string& name : tokenizer_names()) {
        const auto tokenizer = Tokenizer::load(tokenizer_dir(name));
        ASSERT_TRUE(tokenizer) << tokenizer.error().message;
        for (const std::string text :
             {"Once upon a time", "日本 🙂 x é", "a  b\n\n  def f():", "🙂", "ॐ नमः"}) {
            SCOPED_TRACE(name + ": " + text);
            const auto ids = (*tokenizer)->encode(text, AddSpecial::kNo);
            ASSERT_TRUE(ids);
            std::string joined;
            for (const TokenId id : *ids) joined += *(*tokenizer)->bytes_of(id);
            const std::string decoded = *(*tokenizer)->decode(*ids, SkipSpecial::kNo);
            EXPECT_TRUE(joined == decoded || joined == " " + decoded) << joined;
        }
    }
}

TEST(Tokenizer, ATokenAddsBytesAndTheSpaceBeforeIt) {
    const auto tokenizer = Tokenizer::parse(R"({"added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": true, "merges": [],
            "vocab": {"▁hi": 0, "<0xE6>": 1, "<0x0A>": 2, "x": 3, "▁": 4}}})");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const auto added = [&](std::int32_t id) { return *(*tokenizer)->bytes_of(TokenId{id}); };
    EXPECT_EQ(added(0), " hi");
    EXPECT_EQ(added(1), "\xe6");
    EXPECT_EQ(added(2), "\n");
    EXPECT_EQ(added(3), "x");
    EXPECT_EQ(added(4), " ");
    EXPECT_EQ(added(99), "");
}

}  // namespace
}  // namespace pitstop::text
