// Encodes and decodes every message, and compares all fields one by one. golden_test.cpp compares
// the bytes of messages.
#include "tests/messages/every_message.h"

#include <random>

namespace pitstop::messages {
namespace {

using RoundTrip = TestOfEveryMessage;
INSTANTIATE_TEST_SUITE_P(Every, RoundTrip, testing::ValuesIn(every_message()), kTypeName);

TEST_P(RoundTrip, EveryFieldComesBack) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) GetParam().expect_round_trip(seed);
}

TEST_P(RoundTrip, AnUnknownFieldIsRefusedFromAClientAndIgnoredFromAPeer) {
    Frames frames = GetParam().filled(1);
    const auto head = static_cast<unsigned char>(frames.body[0]);
    if (head >= 0x80 && head < 0x8f) {  // a small map: one entry is added in front
        frames.body =
            static_cast<char>(head + 1) + std::string("\xa4wing\xc3") + frames.body.substr(1);
    } else if (head == 0x8f) {  // the largest small map becomes a map 16
        frames.body = std::string("\xde\x00\x10\xa4wing\xc3", 9) + frames.body.substr(1);
    } else {  // map 16
        ASSERT_EQ(head, 0xde);
        frames.body[2] = static_cast<char>(frames.body[2] + 1);
        frames.body.insert(3, "\xa4wing\xc3");
    }
    const Result<Frames> refused = GetParam().recoded(frames, UnknownFields::kRefuse);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("unknown field 'wing'; known are "), std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(GetParam().recoded(frames, UnknownFields::kIgnore));
}

// Decoding randomly damaged bytes gives a message or an error. The sanitizer presets would report
// an out-of-bounds read here.
TEST_P(RoundTrip, DamagedBytesAreAMessageOrAnError) {
    std::mt19937_64 random(7);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const Frames whole = GetParam().filled(seed);
        for (int i = 0; i < 300; ++i) {
            Frames damaged = whole;
            const std::size_t num_hits = 1 + random() % 4;
            for (std::size_t hit = 0; hit < num_hits; ++hit) {
                damaged.body[random() % damaged.body.size()] = static_cast<char>(random());
            }
            if (!damaged.raw.empty() && i % 3 == 0) {
                std::string& bytes = damaged.raw[random() % damaged.raw.size()];
                bytes.resize(random() % (bytes.size() + 1));
            }
            const Result<Frames> result = GetParam().recoded(damaged, UnknownFields::kIgnore);
            if (result) continue;
            EXPECT_TRUE(result.error().message.starts_with(GetParam().type))
                << result.error().message;
        }
    }
}

TEST_P(RoundTrip, ABodyCutAnywhereIsMalformed) {
    const Frames whole = GetParam().filled(3);
    for (std::size_t size = 0; size < whole.body.size(); ++size) {
        Frames cut = whole;
        cut.body.resize(size);
        const Result<Frames> result = GetParam().recoded(cut, UnknownFields::kIgnore);
        ASSERT_FALSE(result) << size << " of " << whole.body.size() << " bytes";
        EXPECT_EQ(result.error().code, ErrorCode::kMalformed) << result.error().message;
    }
}

}  // namespace
}  // namespace pitstop::messages
