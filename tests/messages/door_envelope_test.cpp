// The field `tree`, added to messages and removed again; msgpack's own library is the reference.
#include "messages/door_envelope.h"

#include <gtest/gtest.h>
#include <msgpack.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace pitstop::messages {
namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;

std::string packed(const std::function<void(Packer&)>& fill) {
    msgpack::sbuffer buffer;
    Packer packer(buffer);
    fill(packer);
    return {buffer.data(), buffer.size()};
}

// A map of `num` entries of all kinds, and of `tree` before entry `at`.
std::string map_of(
    std::uint32_t num, std::uint32_t at, const std::function<void(Packer&)>& tree = {}
) {
    return packed([&](Packer& packer) {
        packer.pack_map(num + (tree ? 1 : 0));
        for (std::uint32_t i = 0; i <= num; ++i) {
            if (i == at && tree) {
                packer.pack("tree");
                tree(packer);
            }
            if (i == num) break;
            packer.pack("key" + std::to_string(i));
            switch (i % 12) {
                case 0:
                    packer.pack(std::vector<std::int64_t>{1, -1, 300, -40'000, INT64_MAX, INT64_MIN}
                    );
                    break;
                case 1:
                    packer.pack(std::string(300, 'x'));
                    break;
                case 2:
                    packer.pack(std::string(70'000, 'y'));
                    break;
                case 3:
                    packer.pack(std::map<std::string, double>{{"tree", 1.5}, {"b", -2.5}});
                    break;
                case 4:
                    packer.pack(1.5f);
                    break;
                case 5:
                    packer.pack_nil();
                    break;
                case 6:
                    packer.pack(true);
                    break;
                case 7:
                    packer.pack_bin(300);
                    packer.pack_bin_body(std::string(300, 'b').data(), 300);
                    break;
                case 8:
                    packer.pack_ext(8, 5);
                    packer.pack_ext_body("12345678", 8);
                    break;
                case 9:
                    packer.pack_ext(300, 5);
                    packer.pack_ext_body(std::string(300, 'e').data(), 300);
                    break;
                case 10:
                    packer.pack(std::vector<int>(70'000, 7));
                    break;
                default:
                    packer.pack(std::string("short"));
            }
        }
    });
}

std::string taken(Frames& frames) {
    const Result<std::string> tree = take_tree(frames);
    return tree ? *tree : "an error";
}

void pack_tree(Packer& packer) { packer.pack(std::string("6f1d0c5e9b2a47f38e6d1c0b5a493827")); }

TEST(DoorEnvelope, TheAddedFieldIsWhatTheReferencePacksLast) {
    for (const std::uint32_t num : {0u, 1u, 14u, 15u, 16u, 17u, 200u}) {
        for (const std::string tree : {"t", "6f1d0c5e9b2a47f38e6d1c0b5a493827"}) {
            Frames frames{"pause_generation", map_of(num, num), {}};
            add_tree(frames, tree);
            EXPECT_EQ(frames.body, map_of(num, num, [&](Packer& packer) { packer.pack(tree); }))
                << num;
        }
    }
}

TEST(DoorEnvelope, TakingTheFieldLeavesTheMessageAsItWas) {
    for (const std::uint32_t num : {0u, 1u, 12u, 14u, 15u, 16u, 40u}) {
        for (std::uint32_t at = 0; at <= num; ++at) {
            Frames frames{"pause_generation", map_of(num, at, pack_tree), {}};
            const Result<std::string> tree = take_tree(frames);
            ASSERT_TRUE(tree.has_value());
            EXPECT_EQ(*tree, "6f1d0c5e9b2a47f38e6d1c0b5a493827");
            // Expects the same entries; the map's head may be longer than necessary.
            const auto left = msgpack::unpack(frames.body.data(), frames.body.size());
            const std::string expected = map_of(num, num);
            const auto want = msgpack::unpack(expected.data(), expected.size());
            EXPECT_EQ(left.get(), want.get()) << num << " " << at;
        }
    }
}

TEST(DoorEnvelope, AMessageWithoutTheFieldIsLeftAlone) {
    for (const std::uint32_t num : {0u, 3u, 16u, 40u}) {  // entry 3 is a map that has a `tree`
        Frames frames{"pause_generation", map_of(num, 0), {}};
        const std::string before = frames.body;
        EXPECT_EQ(*take_tree(frames), "");
        EXPECT_EQ(frames.body, before);
    }
}

TEST(DoorEnvelope, NilIsNoTree) {
    Frames frames{"generate", map_of(2, 1, [](Packer& packer) { packer.pack_nil(); }), {}};
    EXPECT_EQ(*take_tree(frames), "");
}

TEST(DoorEnvelope, ATreeThatIsNoTextIsRefused) {
    const std::vector<std::function<void(Packer&)>> wrong{
        [](Packer& packer) { packer.pack(5); },
        [](Packer& packer) {
            packer.pack(std::vector<int>{1, 2});
        },
        [](Packer& packer) {
            packer.pack(std::map<std::string, int>{{"a", 1}});
        },
        [](Packer& packer) { packer.pack(false); },
        [](Packer& packer) {
            packer.pack_bin(3);
            packer.pack_bin_body("abc", 3);
        },
        [](Packer& packer) { packer.pack(std::string("ok\xff")); },
    };
    for (const auto& fill : wrong) {
        Frames frames{"generate", map_of(2, 1, fill), {}};
        const Result<std::string> tree = take_tree(frames);
        ASSERT_FALSE(tree.has_value());
        EXPECT_EQ(tree.error().code, ErrorCode::kInvalidArgument);
        EXPECT_NE(tree.error().message.find("generate: tree"), std::string::npos);
    }
}

TEST(DoorEnvelope, ABodyCutAtAnyByteIsLeftAloneOrHasItsTree) {
    const std::string whole = map_of(13, 13, pack_tree);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        if (size > 2000 && size + 2000 < whole.size() && size % 997 != 0) continue;
        Frames frames{"generate", whole.substr(0, size), {}};
        const std::string before = frames.body;
        EXPECT_EQ(taken(frames), "");
        EXPECT_EQ(frames.body, before);
    }
}

TEST(DoorEnvelope, RandomBytesAndLengthsWithoutEndDoNoHarm) {
    std::mt19937 random(1);
    for (int i = 0; i < 200'000; ++i) {
        Frames frames{"generate", std::string(random() % 40, '\0'), {}};
        for (char& c : frames.body) c = static_cast<char>(random());
        if (!frames.body.empty() && i % 2 == 0) frames.body[0] = '\x83';
        static_cast<void>(take_tree(frames));
    }
    for (const std::string& body :
         {std::string("\xdf\xff\xff\xff\xff", 5) + std::string("\xa1x", 2),
          std::string("\x81\xa1x\xdd\xff\xff\xff\xff", 8) + std::string(100'000, '\x91'),
          std::string("\x81\xa1x\xdb\xff\xff\xff\xff", 8),
          std::string("\x81\xa1x\xc9\xff\xff\xff\xff\x01", 9)}) {
        Frames frames{"generate", body, {}};
        EXPECT_EQ(taken(frames), "");
        EXPECT_EQ(frames.body, body);
    }
}

}  // namespace
}  // namespace pitstop::messages
