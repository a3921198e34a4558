#include "pickle/input.h"

#include "pickle/reader.h"

#include <algorithm>
#include <cstring>

namespace pitstop::pickle {

Result<std::string_view> Input::read_bytes(std::uint64_t num) {
    if (num > num_left()) return malformed("{} bytes are declared, {} are left", num, num_left());
    const auto* data = reinterpret_cast<const char*>(message_.data()) + position_;
    position_ += static_cast<std::size_t>(num);
    return std::string_view(data, static_cast<std::size_t>(num));
}

Result<std::string_view> Input::read_line() {
    const auto* data = reinterpret_cast<const char*>(message_.data()) + position_;
    const std::string_view left(data, std::min(num_left(), kStringBytesMax));
    const std::size_t end = left.find('\n');
    if (end == std::string_view::npos) return malformed("a line without an end");
    position_ += end + 1;
    return left.substr(0, end);
}

Result<std::uint64_t> Input::read_uint(std::size_t num_bytes) {
    ASSIGN_OR_RETURN(const std::string_view bytes, read_bytes(num_bytes));
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());  // little-endian, as this machine is
    return value;
}

}  // namespace pitstop::pickle
