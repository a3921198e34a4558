// Guesses the next tokens of running requests, for passes to verify. A wrong guess never changes a
// token (P11).
//
// A request drafts from the texts of its group: its prompt, the tokens that it brings (draft_ids),
// its own output, and the outputs of running and ended members. A group is all requests with the
// same draft_key. Requests without a key form groups by their connection to the data door and their
// prompt. So no client learns another's output from the speed of its own request, unless both gave
// the
// key.
//
// A row has as many drafts as are likely enough to be right together. The likelihood of a guess
// comes from two counts: how often guesses of the same match length and vote share were right, and
// how often this request's guesses were right. Every guess counts, drafted or not.
//
// Owns:    the texts and their indexes (draft_index.h).
// Thread:  the loop thread only.
// Bounded: the texts of running requests, and `memory_max` bytes for all others. Among groups
// without running members, the least recently used is dropped first. A group keeps its newest
// texts, up to a share of the memory (kGroupShare).
#pragma once

#include "base/ids.h"
#include "scheduler_proc/draft_index.h"
#include "scheduler_proc/request.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Drafter {
  public:
    struct Limits {
        std::int64_t drafts_max = 0;  // per row, at least 1
        std::int64_t memory_max = 0;  // bytes
        double likely_min = 0.3;      // least probability that all drafts of a row are right
    };
    explicit Drafter(const Limits& limits) : limits_(limits) {}

    // Returns whether the request has room for a draft after the pending tokens, and for the output
    // after the draft. Always false for wide requests.
    [[nodiscard]] static bool may_draft(const Request& request) {
        const Progress& progress = request.progress;
        return !request.is_wide() &&
               progress.outputs() + progress.pending() + 2 <= progress.output_len_max();
    }
    // Returns the tokens that are likely to follow the request's known ones, at most `num_max`.
    [[nodiscard]] std::span<const TokenId> draft(const Request& request, std::int64_t num_max);
    // Returns for each draft how likely it and all drafts before it are right; descending.
    [[nodiscard]] std::span<const double> likelihoods(const Request& request, std::int64_t num_max);
    // While a token is being sampled: returns the likelihoods of the drafts after that token.
    [[nodiscard]] std::span<const double> awaited(const Request& request);
    [[nodiscard]] bool is_worth_waiting(const Request& request) {
        return !awaited(request).empty();
    }
    // The request ends; its output stays in its group.
    void remove(const Request& request);

    [[nodiscard]] std::int64_t num_groups() const { return std::ssize(groups_); }
    // Returns the bytes kept beyond the texts of running requests.
    [[nodiscard]] std::int64_t kept_bytes() const { return kept_bytes_; }

    static constexpr std::int64_t kGroupShare = 8;  // 1 / kGroupShare of the memory

  private:
    // The number of guesses that were right, and of all guesses.
    struct Record {
        std::int64_t num_right = 0;
        std::int64_t num = 0;
    };
    struct Group {
        DraftIndex index{};
        std::vector<TokenId> prompt{};  // the first member's
        DraftIndex::Place prompt_end{};
        std::vector<std::vector<TokenId>> ended{};  // outputs, oldest first
        std::int64_t num_ended = 0;                 // tokens in `ended`
        std::int64_t num_running = 0;
        std::int64_t generation = 0;   // of the index, which is rebuilt without dropped texts
        std::uint64_t idle_since = 0;  // the group's key in idle_ while it has no running members
        std::int64_t kept_bytes = 0;
    };
    using Groups = std::map<std::string, Group>;
    static constexpr std::int64_t kTokenBytes =
        40;  // bytes per token of an ended text, its share of the index included
    // A running request's text.
    struct Text {
        Groups::iterator group{};
        std::int64_t generation = -1;
        DraftIndex::Place last{};
        std::int64_t num_indexed = 0;              // tokens of the request
        std::vector<DraftIndex::Guess> guesses{};  // after `num_known` tokens
        std::vector<TokenId> likely{};             // the first guesses, while all are likely right
        std::vector<double> together{};            // per token: P(it and all before it are right)
        std::int64_t num_known = 0;
        Record record{};
    };

    Text& text_of(const Request& request);
    [[nodiscard]] Groups::iterator group_of(const Request& request);
    void follow(Text& text, const Request& request);
    void score_guesses(Text& text, const Request& request);
    void guess(Text& text, const Request& request);
    [[nodiscard]] Record& record_of(const DraftIndex::Guess& guess);
    [[nodiscard]] double likelihood(const Text& text, const DraftIndex::Guess& guess);
    void keep(Group& group, const Request& request);
    void rebuild(Group& group);
    void limit_memory();
    void count_bytes(Group& group);

    // The number of classes of vote shares in records_.
    static constexpr std::size_t kShares = 4;
    static constexpr std::size_t kMatches = DraftIndex::kMatchMax + 1;

    Limits limits_;
    Groups groups_{};
    std::map<std::uint64_t, Groups::iterator> idle_{};  // groups without running members
    std::map<RequestKey, Text> texts_{};
    std::array<std::array<Record, kShares>, kMatches> records_{};
    std::int64_t kept_bytes_ = 0;
    std::uint64_t tick_ = 0;
};

}  // namespace pitstop::scheduler
