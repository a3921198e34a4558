// Every message of the wire as its receiver decodes it. An accepted message must come out of the
// encoder as one that is accepted again, with the same content.
//
// The first byte selects the message. The second is the number of raw frames. The third tells
// whether unknown fields are refused, as from a client, or ignored, as from a newer peer. Each raw
// frame follows two bytes with its length, and the rest is the body.
#include "base/check.h"
#include "messages/all_messages.h"
#include "messages/codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {
namespace {

constexpr std::size_t kRawFramesTried = 3;  // no message has more of them

struct Input {
    messages::Frames frames{};
    messages::UnknownFields unknown_fields = messages::UnknownFields::kRefuse;
};

// `bytes`: the input after its first byte.
Input input_of(std::string_view bytes) {
    Input input;
    const auto take = [&](std::size_t len) {
        const std::string_view taken = bytes.substr(0, len);
        bytes.remove_prefix(taken.size());
        return taken;
    };
    const auto byte = [&] {
        const std::string_view taken = take(1);
        return taken.empty() ? std::size_t{0} : static_cast<std::size_t>(taken[0]) & 0xff;
    };
    const std::size_t num_raw = byte() % (kRawFramesTried + 1);
    if (byte() % 2 == 1) input.unknown_fields = messages::UnknownFields::kIgnore;
    for (std::size_t i = 0; i < num_raw; ++i) {
        const std::size_t low = byte();
        input.frames.raw.emplace_back(take(low | byte() << 8));
    }
    input.frames.body = bytes;
    return input;
}

template <class Message>
void decode_twice(Input& input) {
    input.frames.type = Message::kType;
    const Result<Message> message = decode<Message>(input.frames, input.unknown_fields);
    if (!message) {
        CHECK(!message.error().message.empty());
        return;
    }
    const messages::Frames once = encode(*message);
    const Result<Message> again = decode<Message>(once, messages::UnknownFields::kRefuse);
    CHECK(again);
    const messages::Frames twice = encode(*again);
    CHECK(once.type == twice.type && once.body == twice.body && once.raw == twice.raw);
}

void fuzz(std::uint8_t which, std::string_view bytes) {
    Input input = input_of(bytes);
    // The parts of an invalid message that its refusal uses.
    static_cast<void>(messages::peek_uint(input.frames, "call"));
    static_cast<void>(messages::peek_string(input.frames, "rid"));
    static_cast<void>(messages::peek_string(input.frames, "update", "adapter"));
    std::size_t index = 0;
    messages::AllMessages::for_each([&]<class Message>() {
        if (index++ == which) decode_twice<Message>(input);
    });
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    pitstop::fuzz(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
    return 0;
}
