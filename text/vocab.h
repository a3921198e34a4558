// The vocabulary of a model: token strings and their ids, to look up in both directions.
//
// Owns:    the strings, one after the other.
// Thread:  any after the last insert().
// Bounded: kTokensMax ids of kTokenBytesMax bytes.
#pragma once

#include "base/ids.h"
#include "base/result.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

// Not for keys that an attacker can make collide. The tables that use this hash have the strings of
// a trusted file, or are a cache that replaces its entries.
[[nodiscard]] std::uint64_t hash_bytes(std::string_view bytes);

class Vocab {
  public:
    static constexpr std::int32_t kTokensMax = 1 << 22;  // all ids are below this
    static constexpr std::size_t kTokenBytesMax = 1 << 16;
    static constexpr std::size_t kAllBytesMax = std::size_t{1} << 30;

    // Errors: kAlreadyExists if the string or the id was inserted before; kTooLarge over a limit.
    Result<> insert(std::string_view token, TokenId id);
    // Builds the look-up by string. Is called once, after the last insert(). Error: kAlreadyExists,
    // naming a string that was inserted twice.
    Result<> finish();

    [[nodiscard]] std::size_t num_tokens() const { return num_tokens_; }
    // Returns the largest id plus one.
    [[nodiscard]] std::int32_t id_end() const { return static_cast<std::int32_t>(spans_.size()); }
    [[nodiscard]] std::optional<TokenId> find(std::string_view token) const;
    // Looks up many tokens: ids[i] becomes the id of tokens[i], or -1. The table is larger than the
    // CPU's caches, so the look-ups wait for memory together. This is several times faster than one
    // by one. REQUIRES: ids.size() == tokens.size().
    void find_all(std::span<const std::string_view> tokens, std::span<std::int32_t> ids) const;
    // Returns nothing if no token has this id.
    [[nodiscard]] std::optional<std::string_view> token(TokenId id) const;

  private:
    struct Span {
        std::uint32_t begin = 0;
        std::uint32_t len = kAbsent;
    };
    static constexpr std::uint32_t kAbsent = 0xffffffff;
    struct Slot {
        std::uint32_t tag = 0;  // the high half of the hash
        std::int32_t id = -1;   // negative: the slot is empty
    };
    [[nodiscard]] std::int32_t find_hashed(std::string_view token, std::uint64_t hash)
        const;  // -1: none
    [[nodiscard]] std::string_view text_of(Span span) const {
        return std::string_view(bytes_).substr(span.begin, span.len);
    }

    std::string bytes_{};
    std::vector<Span> spans_{};  // [id]
    std::size_t num_tokens_ = 0;
    std::vector<Slot> slots_{};  // open addressing; a power of two; at most half full
};

}  // namespace pitstop::text
