#include "text/vocab.h"

#include "base/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace pitstop::text {

std::uint64_t hash_bytes(std::string_view bytes) {
    constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
    const auto mix = [](std::uint64_t a, std::uint64_t b) {
        const auto product = static_cast<unsigned __int128>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    };
    std::uint64_t hash = bytes.size() * kMultiplier;
    const char* at = bytes.data();
    std::size_t left = bytes.size();
    for (; left > 8; left -= 8, at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, 8);
        hash = mix(hash ^ word, kMultiplier);
    }
    std::uint64_t last = 0;
    if (left > 0) std::memcpy(&last, at, left);
    return mix(hash ^ last, 0xd6e8feb86659fd93u);
}

Result<> Vocab::insert(std::string_view token, TokenId id) {
    if (raw(id) < 0 || raw(id) >= kTokensMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "token '{}' has id {}; ids are 0 to {}",
            token,
            raw(id),
            kTokensMax - 1
        );
    }
    if (token.size() > kTokenBytesMax || bytes_.size() + token.size() > kAllBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "token {} has {} bytes; at most {} per token and {} in all are accepted",
            raw(id),
            token.size(),
            kTokenBytesMax,
            kAllBytesMax
        );
    }
    const auto index = static_cast<std::size_t>(raw(id));
    if (index >= spans_.size()) spans_.resize(index + 1);
    if (spans_[index].len != kAbsent) {
        return make_error(
            ErrorCode::kAlreadyExists,
            "tokens '{}' and '{}' have the same id {}",
            text_of(spans_[index]),
            token,
            index
        );
    }
    spans_[index] = {
        static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(token.size())};
    bytes_ += token;
    ++num_tokens_;
    return Ok{};
}

Result<> Vocab::finish() {
    slots_.assign(std::bit_ceil(std::max<std::size_t>(num_tokens_ * 2, 16)), Slot{});
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t id = 0; id < spans_.size(); ++id) {
        if (spans_[id].len == kAbsent) continue;
        const std::string_view token = text_of(spans_[id]);
        const std::uint64_t hash = hash_bytes(token);
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        std::size_t at = hash & mask;
        for (; slots_[at].id >= 0; at = (at + 1) & mask) {
            if (slots_[at].tag != tag) continue;
            if (text_of(spans_[static_cast<std::size_t>(slots_[at].id)]) == token) {
                return make_error(
                    ErrorCode::kAlreadyExists,
                    "token '{}' has two ids, {} and {}",
                    token,
                    slots_[at].id,
                    id
                );
            }
        }
        slots_[at] = {tag, static_cast<std::int32_t>(id)};
    }
    return Ok{};
}

std::optional<TokenId> Vocab::find(std::string_view token) const {
    if (slots_.empty()) return std::nullopt;
    const std::int32_t id = find_hashed(token, hash_bytes(token));
    return id < 0 ? std::nullopt : std::optional(TokenId{id});
}

std::int32_t Vocab::find_hashed(std::string_view token, std::uint64_t hash) const {
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
        if (slots_[at].tag != tag) continue;
        if (text_of(spans_[static_cast<std::size_t>(slots_[at].id)]) == token) return slots_[at].id;
    }
    return -1;
}

void Vocab::find_all(std::span<const std::string_view> tokens, std::span<std::int32_t> ids) const {
    CHECK(ids.size() == tokens.size() && !slots_.empty());
    constexpr std::size_t kTogether = 32;
    const std::size_t mask = slots_.size() - 1;
    std::array<std::uint64_t, kTogether> hashes;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kTogether) {
        const std::size_t num = std::min(kTogether, tokens.size() - begin);
        for (std::size_t i = 0; i < num; ++i) {
            hashes[i] = hash_bytes(tokens[begin + i]);
            __builtin_prefetch(&slots_[hashes[i] & mask]);
        }
        for (std::size_t i = 0; i < num; ++i) {
            const Slot& slot = slots_[hashes[i] & mask];
            if (slot.id >= 0) __builtin_prefetch(&spans_[static_cast<std::size_t>(slot.id)]);
        }
        for (std::size_t i = 0; i < num; ++i) {
            const Slot& slot = slots_[hashes[i] & mask];
            if (slot.id >= 0)
                __builtin_prefetch(bytes_.data() + spans_[static_cast<std::size_t>(slot.id)].begin);
        }
        for (std::size_t i = 0; i < num; ++i)
            ids[begin + i] = find_hashed(tokens[begin + i], hashes[i]);
    }
}

std::optional<std::string_view> Vocab::token(TokenId id) const {
    const auto index = static_cast<std::size_t>(raw(id));
    if (raw(id) < 0 || index >= spans_.size() || spans_[index].len == kAbsent) return std::nullopt;
    return text_of(spans_[index]);
}

}  // namespace pitstop::text
