// Remembers how recent pieces of text were encoded. Most of a text is words that came before.
//
// A piece of up to kKeyBytesMax bytes with up to kIdsMax ids has a place in a table, which it
// shares with others: the one used longest ago goes. Short pieces, nearly all, have a table of
// their own, two to a cache line.
//
// Thread:  one at a time.
// Bounded: kBytes, from the first day.
#pragma once

#include "base/ids.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace pitstop {

class PieceCache {
  public:
    static constexpr std::size_t kKeyBytesMax = 32;
    static constexpr std::size_t kIdsMax = 7;

    PieceCache() : short_(kShortEntries), long_(kLongEntries) {}

    // Appends the ids of `piece` and returns true, or does nothing and returns false.
    // REQUIRES: 0 < piece.size() <= kKeyBytesMax.
    bool find(std::string_view piece, std::vector<TokenId>& out) {
        if (piece.size() <= ShortEntry::kKeyBytesMax) return find_in(short_, piece, out);
        return find_in(long_, piece, out);
    }

    // Remembers a piece that find() did not know. More than kIdsMax ids are not remembered.
    void insert(std::string_view piece, std::span<const TokenId> ids) {
        if (piece.size() <= ShortEntry::kKeyBytesMax && ids.size() <= ShortEntry::kIdsMax) {
            insert_in(short_, piece, ids);
        } else if (piece.size() > ShortEntry::kKeyBytesMax && ids.size() <= LongEntry::kIdsMax) {
            insert_in(long_, piece, ids);
        }
    }

  private:
    template <std::size_t kWords, std::size_t kIds>
    struct alignas(kWords * 16) Entry {
        static constexpr std::size_t kKeyBytesMax = kWords * 8;
        static constexpr std::size_t kIdsMax = kIds;
        std::array<std::uint64_t, kWords> key{};
        std::array<TokenId, kIds> ids{};
        std::uint8_t key_len = 0;  // 0: empty
        std::uint8_t num_ids = 0;
    };
    using ShortEntry = Entry<2, 3>;
    using LongEntry = Entry<4, 7>;
    static_assert(sizeof(ShortEntry) == 32 && sizeof(LongEntry) == 64);
    static_assert(LongEntry::kKeyBytesMax == kKeyBytesMax && LongEntry::kIdsMax == kIdsMax);
    static constexpr std::size_t kShortEntries = std::size_t{1} << 15;
    static constexpr std::size_t kLongEntries = std::size_t{1} << 13;
    static constexpr std::size_t kWays =
        2;  // neighbours that share a place, the one used last in front

  public:
    static constexpr std::size_t kBytes =
        kShortEntries * sizeof(ShortEntry) + kLongEntries * sizeof(LongEntry);

  private:
    static std::uint64_t load(const char* at, std::size_t len) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, len);
        return word;
    }

    // The piece as words, which with its length say all of it: the last ones overlap, so that each
    // is loaded whole.
    template <std::size_t kWords>
    static std::array<std::uint64_t, kWords> key_of(std::string_view piece) {
        const char* at = piece.data();
        const std::size_t len = piece.size();
        if constexpr (kWords == 4) {
            return {load(at, 8), load(at + 8, 8), load(at + len - 16, 8), load(at + len - 8, 8)};
        } else {
            if (len >= 8) return {load(at, 8), load(at + len - 8, 8)};
            if (len >= 4) return {load(at, 4), load(at + len - 4, 4)};
            // First, middle and last byte are all of up to three.
            return {load(at, 1) | (load(at + len / 2, 1) << 8) | (load(at + len - 1, 1) << 16), 0};
        }
    }

    template <class E>
    static E* set_of(std::vector<E>& entries, const decltype(E::key)& key, std::size_t len) {
        std::uint64_t hash = len * 0x9e3779b97f4a7c15u;
        for (const std::uint64_t word : key) {
            const auto product = static_cast<unsigned __int128>(hash ^ word) * 0xd6e8feb86659fd93u;
            hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
        }
        return &entries[(hash & (entries.size() / kWays - 1)) * kWays];
    }

    template <class E>
    static bool is_same(const E& entry, const decltype(E::key)& key, std::size_t len) {
        std::uint64_t difference = entry.key_len ^ len;
        for (std::size_t i = 0; i < key.size(); ++i) difference |= entry.key[i] ^ key[i];
        return difference == 0;
    }

    template <class E>
    static bool find_in(
        std::vector<E>& entries, std::string_view piece, std::vector<TokenId>& out
    ) {
        const auto key = key_of<std::tuple_size_v<decltype(E::key)>>(piece);
        E* const set = set_of(entries, key, piece.size());
        if (!is_same(set[0], key, piece.size())) {
            if (!is_same(set[1], key, piece.size())) return false;
            std::swap(set[0], set[1]);
        }
        const std::size_t num_before = out.size();
        out.resize(num_before + set[0].num_ids);
        for (std::size_t i = 0; i < set[0].num_ids; ++i) out[num_before + i] = set[0].ids[i];
        return true;
    }

    template <class E>
    static void insert_in(
        std::vector<E>& entries, std::string_view piece, std::span<const TokenId> ids
    ) {
        E entry{.key = key_of<std::tuple_size_v<decltype(E::key)>>(piece)};
        entry.key_len = static_cast<std::uint8_t>(piece.size());
        entry.num_ids = static_cast<std::uint8_t>(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) entry.ids[i] = ids[i];
        E* const set = set_of(entries, entry.key, piece.size());
        set[1] = set[0];
        set[0] = entry;
    }

    std::vector<ShortEntry> short_;  // [kShortEntries]
    std::vector<LongEntry> long_;    // [kLongEntries]
};

}  // namespace pitstop
