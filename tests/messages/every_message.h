// The operations of tests on a message, for every message. Each is behind a function pointer, so
// that only one source is compiled for all of them.
#pragma once

#include "messages/codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

struct MessageCase {
    std::string_view type{};
    // Encodes a valid message in which no field has its default. The seed decides the values.
    Frames (*filled)(std::uint64_t seed) = nullptr;
    // Decodes, and encodes the result.
    Result<Frames> (*recoded)(const Frames& frames, UnknownFields unknown_fields) = nullptr;
    // Encodes and decodes such a message; expects each field to be unchanged.
    void (*expect_round_trip)(std::uint64_t seed) = nullptr;
};
void PrintTo(const MessageCase& message, std::ostream* out);

[[nodiscard]] std::vector<MessageCase> every_message();

// Base of a suite that tests every message:
// INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::ValuesIn(every_message()), kTypeName).
using TestOfEveryMessage = testing::TestWithParam<MessageCase>;
inline const auto kTypeName = [](const testing::TestParamInfo<MessageCase>& info) {
    return std::string(info.param.type);
};

}  // namespace pitstop::messages
