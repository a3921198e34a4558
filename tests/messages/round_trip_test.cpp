// Every message comes back as it was sent. Equality is checked on the fields, one by one, not on
// the bytes: what the golden bytes say of a few messages this says of all.
#include "tests/messages/every_message.h"

#include <algorithm>

namespace pitstop::messages {
namespace {

template <class T>
concept Fielded = requires(T& value) {
    value.fields([](auto&&...) {});
};

// Field by field; a difference is reported with the field's name.
template <class T>
bool equal(const T& a, const T& b) {
    if constexpr (Fielded<T>) {
        // Both lists are walked side by side: b's fields are kept as pointers, in order.
        std::vector<const void*> others;
        const_cast<T&>(b).fields([&](auto, auto& field, auto) { others.push_back(&field); });
        bool is_equal = true;
        std::size_t i = 0;
        const_cast<T&>(a).fields([&](std::string_view name, auto& field, auto) {
            using Field = std::remove_cvref_t<decltype(field)>;
            if (equal<Field>(field, *static_cast<const Field*>(others[i++]))) return;
            ADD_FAILURE() << "field " << name << " differs";
            is_equal = false;
        });
        return is_equal;
    } else if constexpr (requires {
                             const_cast<typename T::value_type&>(a.value()).fields([](auto&&...) {}
                             );
                         }) {  // an optional part
        return a.has_value() == b.has_value() && (!a.has_value() || equal(*a, *b));
    } else if constexpr (requires {
                             const_cast<typename T::value_type&>(a.front()).fields([](auto&&...) {}
                             );
                         }) {  // an array of parts
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
            return equal(x, y);
        });
    } else {
        return a == b;
    }
}

template <class Message>
class RoundTrip : public testing::Test {};
TYPED_TEST_SUITE(RoundTrip, EveryMessage, MessageNames);

TYPED_TEST(RoundTrip, EveryFieldComesBack) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto sent = Filler(seed).message<TypeParam>();
        const Result<TypeParam> received = decode<TypeParam>(encode(sent), UnknownFields::kRefuse);
        ASSERT_TRUE(received) << received.error().message;
        EXPECT_TRUE(equal(sent, *received)) << "seed " << seed;
    }
}

TYPED_TEST(RoundTrip, AnUnknownFieldIsRefusedFromAClientAndIgnoredFromAPeer) {
    Frames frames = encode(Filler(1).message<TypeParam>());
    const auto head = static_cast<unsigned char>(frames.body[0]);
    if (head >= 0x80 && head < 0x8f) {  // a small map: one more entry in front
        frames.body =
            static_cast<char>(head + 1) + std::string("\xa4wing\xc3") + frames.body.substr(1);
    } else {  // map 16
        ASSERT_EQ(head, 0xde);
        frames.body[2] = static_cast<char>(frames.body[2] + 1);
        frames.body.insert(3, "\xa4wing\xc3");
    }
    const Result<TypeParam> refused = decode<TypeParam>(frames, UnknownFields::kRefuse);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("unknown field 'wing'; known are "), std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(decode<TypeParam>(frames, UnknownFields::kIgnore));
}

// Random damage: whatever the bytes, decoding ends with a message or an error. Under the sanitizer
// presets this is where an out-of-bounds read would show.
TYPED_TEST(RoundTrip, DamagedBytesAreAMessageOrAnError) {
    std::mt19937_64 random(7);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const Frames whole = encode(Filler(seed).message<TypeParam>());
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
            const Result<TypeParam> result = decode<TypeParam>(damaged, UnknownFields::kIgnore);
            if (result) continue;
            EXPECT_TRUE(result.error().message.starts_with(TypeParam::kType))
                << result.error().message;
        }
    }
}

TYPED_TEST(RoundTrip, ABodyCutAnywhereIsMalformed) {
    const Frames whole = encode(Filler(3).message<TypeParam>());
    for (std::size_t size = 0; size < whole.body.size(); ++size) {
        Frames cut = whole;
        cut.body.resize(size);
        const Result<TypeParam> result = decode<TypeParam>(cut, UnknownFields::kIgnore);
        ASSERT_FALSE(result) << size << " of " << whole.body.size() << " bytes";
        EXPECT_EQ(result.error().code, ErrorCode::kMalformed) << result.error().message;
    }
}

}  // namespace
}  // namespace pitstop::messages
