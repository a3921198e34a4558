// Connects a client to a fake door, and makes the messages of such a door.
#pragma once

#include "client/client.h"
#include "tests/client/fake_door.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

namespace pitstop {

inline constexpr auto kLong =
    std::chrono::seconds(20);  // a deadline that only a failing test meets

inline messages::OutputChunk text_chunk(
    const std::string& rid, const std::string& text, int token
) {
    messages::OutputChunk chunk;
    chunk.rid = rid;
    chunk.text = text;
    chunk.tokens = {TokenId{token}};
    chunk.spans = {messages::Span{.epoch = Epoch{1}, .tokens = 1}};
    return chunk;
}

inline messages::OutputChunk last_chunk(const std::string& rid, messages::FinishReason reason) {
    messages::OutputChunk chunk;
    chunk.rid = rid;
    chunk.finish = messages::Finish{.reason = reason};
    return chunk;
}

inline messages::Generate prompt(const std::string& text) {
    messages::Generate request;
    request.text = text;
    return request;
}

class ClientTest : public testing::Test {
  protected:
    std::unique_ptr<Client> connect(CallbackThread callbacks = CallbackThread::kIo) {
        auto client = Client::connect({.run_dir = dir_.path(), .callbacks = callbacks});
        CHECK(client.has_value());
        return *std::move(client);
    }

    TempDir dir_;
    std::optional<FakeDoor> door_{std::in_place, dir_.path()};
};

}  // namespace pitstop
