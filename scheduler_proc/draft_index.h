// Finds earlier continuations of the same tokens, to guess the next tokens of a request.
//
// A text grows token by token, from the start or after any token of another text, so that the
// outputs of one prompt share it. Each token is an entry of one array, with links to the entry
// before it, to the first one after it, and to the newest older entry whose last kGram tokens have
// the same hash: the search by hash chains of LZ77, as in deflate. A search visits a bounded part
// of one chain, newest first, and measures how long each occurrence matches, backwards. So no text,
// however repetitive, makes an entry or a search expensive.
//
// Source: Deutsch 1996 (RFC 1951, section 4); Ziv and Lempel 1977.
// Thread:  the loop thread only.
// Bounded: 40 bytes per token of a long text; a search by kVisitsMax and kMatchMax.
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::scheduler {

class DraftIndex {
  public:
    static constexpr int kGram = 3;        // the least number of tokens that must match
    static constexpr int kMatchMax = 32;   // longer matches count as this long
    static constexpr int kVisitsMax = 16;  // entries of a chain that a search visits

    // A token's place, to append after; kStart: before the first token of a text.
    enum class Place : std::int32_t {};
    static constexpr Place kStart{-1};

    // Appends the token. REQUIRES: `after` is kStart or a place that was returned before.
    Place append(Place after, TokenId token);
    Place append(Place after, std::span<const TokenId> tokens);

    // A token that may follow.
    struct Guess {
        TokenId token{};
        int match = 0;  // the longest match of an occurrence that it followed, at most kMatchMax
        float share = 0.f;  // the sum of the weights of the occurrences that it followed
    };
    // Guesses up to `num_max` tokens after `last`, each as if those before it were right. Each
    // occurrence that agrees with all guesses so far votes for its next token. One more matching
    // token doubles a vote, and among equal votes the newest wins.
    [[nodiscard]] std::vector<Guess> guess(Place last, int num_max) const;

    [[nodiscard]] std::int64_t num_tokens() const { return std::ssize(entries_); }
    // Returns the bytes that it has allocated.
    [[nodiscard]] std::int64_t bytes() const;

  private:
    static constexpr std::int32_t kNone = -1;
    struct Entry {
        TokenId token{};
        std::int32_t before = kNone;
        std::int32_t after = kNone;  // the first entry that was appended to it
        std::int32_t chain = kNone;  // the newest older entry with the same hash
    };
    struct Occurrence {
        std::int32_t next = kNone;  // the entry that follows it
        int match = 0;
    };
    [[nodiscard]] const Entry& at(std::int32_t place) const {
        return entries_[static_cast<std::size_t>(place)];
    }
    [[nodiscard]] std::size_t bucket_of(std::int32_t place) const;
    void link(std::int32_t place);
    void make_room(std::size_t num);
    [[nodiscard]] int match_of(std::int32_t a, std::int32_t b) const;
    [[nodiscard]] std::vector<Occurrence> occurrences(std::int32_t last) const;

    std::vector<Entry> entries_{};
    std::vector<std::int32_t> heads_{};  // the newest entry of each chain; a power of two, or empty
};

}  // namespace pitstop::scheduler
