// Finds earlier occurrences of a request's last tokens, to guess the tokens that come next.
//
// A text grows token by token, from the start or after any token of another text, so that the
// outputs of one prompt share its entries. Each token is an entry of one array. An entry links to
// the entry before it, to the first entry after it, and to the next older entry whose last kGram
// tokens have the same hash. These are the hash chains of LZ77, as in deflate. A search visits at
// most kVisitsMax entries of one chain, newest first, and measures backwards how long each
// occurrence matches. So even a repetitive text makes no entry and no search expensive.
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

    // A token's place, after which a text may continue; kStart: before a text's first token.
    enum class Place : std::int32_t {};
    static constexpr Place kStart{-1};

    // Appends the token. REQUIRES: `after` is kStart or a place that was returned before.
    Place append(Place after, TokenId token);
    Place append(Place after, std::span<const TokenId> tokens);

    // A token that may follow.
    struct Guess {
        TokenId token{};
        int match = 0;  // longest match among the occurrences that it follows, at most kMatchMax
        float share = 0.f;  // the share of the total vote that it received
    };
    // Guesses up to `num_max` tokens after `last`, each as if all earlier guesses were right. Each
    // occurrence that agrees with all guesses so far votes for its next token. One more matching
    // token doubles a vote. Among equal votes the newest wins.
    [[nodiscard]] std::vector<Guess> guess(Place last, int num_max) const;

    [[nodiscard]] std::int64_t num_tokens() const { return std::ssize(entries_); }
    // Returns the allocated bytes.
    [[nodiscard]] std::int64_t bytes() const;

  private:
    static constexpr std::int32_t kNone = -1;
    struct Entry {
        TokenId token{};
        std::int32_t before = kNone;
        std::int32_t after = kNone;  // the first entry that was appended after this one
        std::int32_t chain = kNone;  // the newest older entry with the same hash
    };
    struct Occurrence {
        std::int32_t next = kNone;  // the entry after the occurrence
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
