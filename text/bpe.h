// Encodes a piece of text by the model's byte-pair encoding.
//
// A piece starts as one symbol per character (or byte). Then pairs of neighbours are joined, one by
// one: always the pair that is earliest in the list of merges, leftmost first.
//
// Source: Sennrich, Haddow and Birch 2016 (arXiv:1508.07909). Details (unknown characters, byte
// fallback, ignore_merges) follow the reference implementation, models/bpe of `tokenizers`.
//
// Thread: any; a Bpe is immutable. A Scratch belongs to one call at a time.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/piece_cache.h"
#include "text/vocab.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::text {

struct BpeOptions {
    std::optional<std::string> unk_token{};  // the token of characters outside the vocabulary
    std::string continuing_subword_prefix{};
    std::string end_of_word_suffix{};
    bool fuse_unk = false;  // neighbouring unknown characters become one unk_token
    bool byte_fallback =
        false;  // unknown characters become tokens <0x00> to <0xFF>, if all of these exist
    bool ignore_merges = false;  // a piece whose text is a token becomes that token
};

class Bpe {
  public:
    // The characters of a piece are its code points, or its bytes. A byte stands for the character
    // that byte_alphabet.h gives it.
    enum class Unit { kCodePoint, kByte };

    // A look-up of a piece reads whole words of memory.
    static constexpr std::size_t kReadableBytes = PieceCache::kKeyBytesMax;

    using Merge = std::pair<std::string_view, std::string_view>;

    // REQUIRES: vocab.finish() was called. Error: kMalformed if a merge joins strings that are not
    // tokens, or joins into a string that is not a token.
    static Result<Bpe> create(
        Vocab vocab, std::span<const Merge> merges, BpeOptions options, Unit unit
    );

    // The memory of a thread that encodes: working space, and the encodings of recent pieces.
    //
    // Bounded: PieceCache::kBytes, and the working space of the longest part so far.
    class Scratch;

    // Appends the encoding of `piece`. Returns false if a character is unknown and there is no
    // unk_token; then the appended ids are unspecified. REQUIRES: `piece` is valid UTF-8, unless
    // the unit is kByte; kReadableBytes bytes are readable after its end.
    [[nodiscard]] bool encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out)
        const;

    [[nodiscard]] const Vocab& vocab() const { return vocab_; }

  private:
    struct Joined {
        std::uint32_t rank = 0;
        std::int32_t id = -1;  // the token that the pair becomes
    };
    struct Slot {
        std::uint64_t pair = ~std::uint64_t{0};  // all ones: the slot is empty
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
    // The token of each character, by pages of code points.
    class CharacterIds {
      public:
        void insert(char32_t character, std::int32_t id);
        // Returns -1 if the character is not a token.
        [[nodiscard]] std::int32_t find(char32_t character) const {
            const std::uint16_t page = page_of_[character >> kPageBits];
            return pages_[page][character & (kPageSize - 1)];
        }

      private:
        static constexpr int kPageBits = 8;
        static constexpr std::size_t kPageSize = 1u << kPageBits;
        using Page = std::array<std::int32_t, kPageSize>;
        static Page empty_page() {
            Page page;
            page.fill(-1);
            return page;
        }
        std::vector<std::uint16_t> page_of_ = std::vector<std::uint16_t>(0x110000 >> kPageBits, 0);
        std::vector<Page> pages_ = {empty_page()};  // page 0 has no tokens
    };

    // The pairs of characters that are adjacent in some token. It may also report other pairs.
    class Neighbours {
      public:
        void insert(char32_t left, char32_t right) { word_of(left, right) |= bit_of(left, right); }
        [[nodiscard]] bool contains(char32_t left, char32_t right) const {
            return (words_[index_of(left, right) / 64] & bit_of(left, right)) != 0;
        }

      private:
        static constexpr std::size_t kBits = std::size_t{1} << 19;
        static constexpr std::size_t kAsciiBits = std::size_t{128} * 128;
        static std::size_t index_of(char32_t left, char32_t right) {
            if ((left | right) < 128) return left * 128 + right;
            const std::uint64_t pair = (static_cast<std::uint64_t>(left) << 32) | right;
            return kAsciiBits + static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15u) >> (64 - 19));
        }
        static std::uint64_t bit_of(char32_t left, char32_t right) {
            return std::uint64_t{1} << (index_of(left, right) % 64);
        }
        std::uint64_t& word_of(char32_t left, char32_t right) {
            return words_[index_of(left, right) / 64];
        }
        std::vector<std::uint64_t> words_ =
            std::vector<std::uint64_t>((kBits + kAsciiBits) / 64, 0);
    };

    Result<> build_merges(std::span<const Merge> merges);
    Result<> build_merge_block(std::span<const Merge> merges, std::uint32_t first_rank);
    void find_characters();
    void find_cuts(std::span<const Merge> merges);
    [[nodiscard]] bool may_cut(char32_t left, char32_t right) const;

    [[nodiscard]] bool encode_part(
        std::string_view part, Scratch& scratch, std::vector<TokenId>& out
    ) const;
    [[nodiscard]] bool encode_uncached(
        std::string_view part, Scratch& scratch, std::vector<TokenId>& out
    ) const;
    [[nodiscard]] bool append_symbols(std::string_view part, std::vector<std::int32_t>& symbols)
        const;
    [[nodiscard]] std::int32_t find_decorated(
        std::string_view character, bool is_first, bool is_last
    ) const;
    void merge_short(std::vector<std::int32_t>& symbols) const;
    void merge_long(Scratch& scratch) const;

    Vocab vocab_{};
    BpeOptions options_{};
    Unit unit_ = Unit::kCodePoint;
    bool is_decorated_ = false;   // characters have a prefix or a suffix
    std::vector<Slot> merges_{};  // open addressing; a power of two; at most half full
    int merges_shift_ = 0;
    CharacterIds character_ids_{};
    std::array<std::int32_t, 256> byte_ids_{};      // [byte]: the token of its character, or -1
    std::array<std::int32_t, 256> fallback_ids_{};  // [byte]: the token <0xNN>, or -1
    std::optional<TokenId> unk_id_{};
    std::size_t token_bytes_max_ = 0;  // the length of the longest token's string
    bool has_cuts_ = false;            // as find_cuts() describes
    // every unknown character becomes <0xNN>, and no merge joins it
    bool unknown_is_bytes_ = false;
    Neighbours neighbours_{};
};

class Bpe::Scratch {
  private:
    friend class Bpe;
    struct Symbol {
        std::int32_t id = 0;
        std::int32_t previous = -1;
        std::int32_t next = -1;
        bool is_joined = false;  // into the symbol before it
    };
    struct Candidate {
        std::uint64_t order = 0;  // the rank, then the position
        std::int32_t id = 0;
        bool operator>(const Candidate& other) const { return order > other.order; }
    };

    PieceCache cache_{};
    std::vector<std::int32_t> symbols_{};  // of the current part
    std::vector<Symbol> links_{};
    std::vector<Candidate> heap_{};
};

}  // namespace pitstop::text
