// The bytes of a pickle, read from the first to the last.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace pitstop::pickle {

// Every read is checked against the end. Errors: kMalformed.
class Input {
  public:
    explicit Input(std::span<const std::byte> message) : message_(message) {}

    [[nodiscard]] std::size_t position() const { return position_; }  // of the next byte
    [[nodiscard]] std::size_t num_left() const { return message_.size() - position_; }

    // The results are valid as long as the message.
    Result<std::string_view> read_bytes(std::uint64_t num);
    // Reads up to a line's end, which is not part of the result.
    Result<std::string_view> read_line();
    // Reads a little-endian number. REQUIRES: num_bytes <= 8.
    Result<std::uint64_t> read_uint(std::size_t num_bytes);

    template <class... Args>
    [[nodiscard]] Error malformed(fmt::format_string<Args...> format, Args&&... args) const {
        return make_error(
            ErrorCode::kMalformed,
            "pickle, byte {}: {}",
            position_,
            fmt::format(format, std::forward<Args>(args)...)
        );
    }

  private:
    std::span<const std::byte> message_;
    std::size_t position_ = 0;
};

}  // namespace pitstop::pickle
