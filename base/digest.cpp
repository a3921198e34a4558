#include "base/digest.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

namespace pitstop {

Digest digest_of(std::string_view text) {
    Digest sum;
    for (std::uint64_t i = 0; i * 8 < text.size(); ++i) {
        const std::string_view piece = text.substr(i * 8, 8);
        std::uint64_t word = 0;
        std::memcpy(&word, piece.data(), piece.size());
        const std::uint64_t h = mix64(word + (i + 1) * kDigestStep);
        sum += Digest{h, (h >> 32) * (h & 0xffffffffu)};
    }
    return sum;
}

std::string to_hex(const Digest& digest) {
    return fmt::format("{:016x}{:016x}", digest.lane0, digest.lane1);
}

std::optional<Digest> digest_from_hex(std::string_view hex) {
    if (hex.size() != 32) return std::nullopt;
    Digest digest;
    for (const auto& [lane, text] :
         {std::pair{&digest.lane0, hex.substr(0, 16)}, {&digest.lane1, hex.substr(16)}}) {
        const auto [end, error] =
            std::from_chars(text.data(), text.data() + text.size(), *lane, 16);
        if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    }
    return digest;
}

}  // namespace pitstop
