// A cache of the encodings of recent pieces of text. Most words of a text have appeared before.
//
// Pieces of up to kKeyBytesMax bytes with up to kIdsMax ids are kept in a table. Several pieces
// share a place; a new one replaces the least recently used one there. Short pieces, which nearly
// all are, have their own table, with two pieces per cache line.
//
// Thread:  one at a time.
// Bounded: kBytes, allocated at construction.
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

namespace pitstop::text {

class PieceCache {
  public:
    static constexpr std::size_t kKeyBytesMax = 32;
    static constexpr std::size_t kIdsMax = 23;

    PieceCache() : short_(kShortEntries), long_(kLongEntries) {}

    // Appends the ids of `piece` and returns true. Returns false if the cache does not have the
    // piece. REQUIRES: 0 < piece.size() <= kKeyBytesMax; kKeyBytesMax bytes are readable from the
    // piece's begin.
    bool find(std::string_view piece, std::vector<TokenId>& out) {
        if (piece.size() <= ShortEntry::kKeyBytesMax && find_in(short_, piece, out)) return true;
        return find_in(long_, piece, out);
    }

    // Keeps the ids of a piece that find() did not find; keeps nothing if there are more than
    // kIdsMax. REQUIRES: as find().
    void insert(std::string_view piece, std::span<const TokenId> ids) {
        if (piece.size() <= ShortEntry::kKeyBytesMax && ids.size() <= ShortEntry::kIdsMax) {
            insert_in(short_, piece, ids);
        } else if (ids.size() <= LongEntry::kIdsMax) {
            insert_in(long_, piece, ids);
        }
    }

  private:
    template <std::size_t kWords, std::size_t kIds>
    struct alignas(32) Entry {
        static constexpr std::size_t kKeyBytesMax = kWords * 8;
        static constexpr std::size_t kIdsMax = kIds;
        std::array<std::uint64_t, kWords> key{};
        std::array<TokenId, kIds> ids{};
        std::uint8_t key_len = 0;  // 0: the entry is empty
        std::uint8_t num_ids = 0;
    };
    using ShortEntry = Entry<2, 3>;
    using LongEntry = Entry<4, 23>;
    static_assert(sizeof(ShortEntry) == 32 && sizeof(LongEntry) == 128);
    static_assert(LongEntry::kKeyBytesMax == kKeyBytesMax && LongEntry::kIdsMax == kIdsMax);
    static constexpr std::size_t kShortEntries = std::size_t{1} << 15;
    static constexpr std::size_t kLongEntries = std::size_t{1} << 12;
    static constexpr std::size_t kWays =
        2;  // the entries that share a place, the most recently used first

  public:
    static constexpr std::size_t kBytes =
        kShortEntries * sizeof(ShortEntry) + kLongEntries * sizeof(LongEntry);

  private:
    // Reads the piece as words, padded with zeros. Uses loads and masks, because a branch on the
    // length would often be mispredicted.
    template <std::size_t kWords>
    static std::array<std::uint64_t, kWords> key_of(std::string_view piece) {
        std::array<std::uint64_t, kWords> key;
        std::memcpy(key.data(), piece.data(), sizeof key);
        for (std::size_t i = 0; i < kWords; ++i)
            key[i] &= kMasks[8 * (kKeyBytesMax / 8 - 1 - i) + piece.size()];
        return key;
    }
    // [8 * k + n]: the mask of the word that follows k complete words, for n bytes of text.
    static constexpr auto kMasks = [] {
        std::array<std::uint64_t, 2 * kKeyBytesMax> masks{};
        for (std::size_t i = 0; i < masks.size(); ++i) {
            const std::size_t before = kKeyBytesMax - 8;  // bytes of the words before the last one
            const std::size_t num = i <= before ? 0 : i - before >= 8 ? 8 : i - before;
            masks[i] = num == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * num)) - 1;
        }
        return masks;
    }();

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
        out.push_back(set[0].ids[0]
        );  // nearly always one id; there is none if a character was dropped
        if (set[0].num_ids == 1) [[likely]]
            return true;
        out.pop_back();
        out.insert(out.end(), set[0].ids.begin(), set[0].ids.begin() + set[0].num_ids);
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

}  // namespace pitstop::text
