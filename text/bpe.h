// The model: byte-pair encoding of one piece of text.
//
// A piece begins as one symbol per character (or byte) and the pair of neighbours that comes first
// in the list of merges is joined, leftmost first, until no pair is in the list.
//
// Source: Sennrich, Haddow and Birch 2016 (arXiv:1508.07909); the details (unknown characters, byte
// fallback, ignore_merges) are those of the reference implementation, models/bpe of `tokenizers`.
//
// Thread: any; immutable. A Scratch belongs to one call at a time.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/vocab.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop {

struct BpeOptions {
    std::optional<std::string> unk_token{};  // for characters that are not in the vocabulary
    std::string continuing_subword_prefix{};
    std::string end_of_word_suffix{};
    bool fuse_unk = false;  // neighbouring unknown characters become one unk_token
    bool byte_fallback =
        false;  // unknown characters become tokens <0x00> to <0xFF>, if all are there
    bool ignore_merges = false;  // a piece that is a token is that token
};

class Bpe {
  public:
    // What the characters of a piece are: its code points, or its bytes, each standing for the
    // character that byte_alphabet.h gives it.
    enum class Unit { kCodePoint, kByte };

    using Merge = std::pair<std::string_view, std::string_view>;

    // REQUIRES: vocab.finish() was called. kMalformed: a merge of or into what is no token.
    static Result<Bpe> create(
        Vocab vocab, std::span<const Merge> merges, BpeOptions options, Unit unit
    );

    // Memory of an encoding thread: working space, and the encodings of recent pieces.
    //
    // Bounded: 2 MB, and what the longest piece needed.
    class Scratch;

    // Appends the encoding of `piece`. False: a character is unknown and the vocabulary lacks the
    // unk_token; what was appended is unspecified. REQUIRES: valid UTF-8 unless the unit is kByte.
    [[nodiscard]] bool encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out)
        const;

    [[nodiscard]] const Vocab& vocab() const { return vocab_; }

  private:
    struct Joined {
        std::uint32_t rank = 0;
        std::int32_t id = -1;  // of the token that the pair becomes
    };
    struct Slot {
        std::uint64_t pair = ~std::uint64_t{0};  // all ones: empty
        Joined joined{};
    };
    Bpe() = default;

    [[nodiscard]] const Joined* find_merge(std::int32_t left, std::int32_t right) const {
        const std::uint64_t pair = pair_of(left, right);
        for (std::size_t at = slot_of(pair);; at = (at + 1) & (merges_.size() - 1)) {
            if (merges_[at].pair == pair) return &merges_[at].joined;
            if (merges_[at].pair == ~std::uint64_t{0}) return nullptr;
        }
    }
    static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
        return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
               static_cast<std::uint32_t>(right);
    }
    [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const {
        return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15u) >> merges_shift_);
    }
    Result<> build_merges(std::span<const Merge> merges);
    void find_cuts();

    [[nodiscard]] bool encode_part(
        std::string_view part, Scratch& scratch, std::vector<TokenId>& out
    ) const;
    [[nodiscard]] bool encode_uncached(
        std::string_view part, Scratch& scratch, std::vector<TokenId>& out
    ) const;
    [[nodiscard]] bool append_symbols(std::string_view part, std::vector<std::int32_t>& symbols)
        const;
    [[nodiscard]] std::int32_t find_character(std::string_view character) const;
    void merge_short(std::vector<std::int32_t>& symbols) const;
    void merge_long(Scratch& scratch) const;

    Vocab vocab_{};
    BpeOptions options_{};
    Unit unit_ = Unit::kCodePoint;
    std::vector<Slot> merges_{};  // open addressing, a power of two, at most half full
    int merges_shift_ = 0;
    std::array<std::int32_t, 256> byte_ids_{};  // [byte]: its character's token, -1: none (kByte)
    std::array<std::int32_t, 256> fallback_ids_{};  // [byte]: the token <0xNN>, -1: none
    std::optional<TokenId> unk_id_{};
    std::size_t token_bytes_max_ = 0;  // of the longest token's string
    std::vector<bool> begins_part_{};  // [code point], see find_cuts()
};

class Bpe::Scratch {
  public:
    Scratch();

  private:
    friend class Bpe;
    static constexpr std::size_t kEntries = std::size_t{1} << 15;
    static constexpr std::size_t kKeyBytesMax = 32;
    static constexpr std::size_t kIdsMax = 7;
    static constexpr std::size_t kWays = 2;

    using Key = std::array<std::uint64_t, 4>;
    struct alignas(64) Entry {
        Key key{};
        std::array<std::int32_t, kIdsMax> ids{};
        std::uint8_t key_len = 0;  // 0: empty
        std::uint8_t num_ids = 0;
    };
    struct Symbol {
        std::int32_t id = 0;
        std::int32_t previous = -1;
        std::int32_t next = -1;
        bool is_joined = false;  // into the symbol before it
    };
    struct Candidate {
        std::uint32_t rank = 0;
        std::int32_t position = 0;
        std::int32_t id = 0;
        bool operator>(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : position > other.position;
        }
    };

    std::vector<Entry> entries_;           // [kEntries], sets of kWays, the one used last in front
    std::vector<std::int32_t> symbols_{};  // of a part under way
    std::vector<Symbol> links_{};
    std::vector<Candidate> heap_{};
};

}  // namespace pitstop
