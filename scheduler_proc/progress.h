// Says how far a request is in its sequence, which is the prompt's tokens and then the output's.
//
//     0 ...... done ...... planned ...... known
//
// Positions [0, done) have KV now, and [0, planned) will once the steps in flight are done. Tokens
// [0, known) are known; `pending` more are being sampled by steps in flight. While some are, the
// last planned position is the one that the newest of them is sampled after.
//
// All counts are of tokens. The steps below keep the invariants; problem() says them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pitstop::scheduler {

class Progress {
  public:
    Progress() = default;
    Progress(std::int64_t prompt_len, std::int64_t output_len_max)
        : prompt_len_(prompt_len), output_len_max_(output_len_max), known_(prompt_len) {}

    [[nodiscard]] std::int64_t prompt_len() const { return prompt_len_; }
    [[nodiscard]] std::int64_t output_len_max() const { return output_len_max_; }
    [[nodiscard]] std::int64_t known() const { return known_; }
    [[nodiscard]] std::int64_t outputs() const { return known_ - prompt_len_; }
    [[nodiscard]] std::int64_t planned() const { return planned_; }
    [[nodiscard]] std::int64_t done() const { return done_; }
    // These may outlive a run: a retracted request still takes the tokens that were being sampled.
    [[nodiscard]] std::int64_t pending() const { return pending_; }
    // Counts the positions whose KV the last retraction gave up.
    [[nodiscard]] std::int64_t lost() const { return lost_; }

    // Returns whether another token may be sampled after those known and pending.
    [[nodiscard]] bool may_sample() const { return outputs() + pending_ < output_len_max_; }
    // Counts the tokens that the next step could take: all known ones without KV, or the one being
    // sampled.
    [[nodiscard]] std::int64_t plannable() const {
        if (pending_ == 0) return known_ - planned_;
        return may_sample() ? 1 : 0;
    }

    // It runs, and so many positions have KV of the prefix cache.
    // REQUIRES: nothing is planned or pending; num_cached < known().
    void start(std::int64_t num_cached) { planned_ = done_ = num_cached; }
    // A step computes the next positions, and samples a token after them or does not.
    // REQUIRES: 0 < num_new <= plannable(); samples only if may_sample().
    void plan(std::int64_t num_new, bool samples) {
        planned_ += num_new;
        pending_ += samples ? 1 : 0;
    }
    // A step that reached to `end` is done.
    void finish_step(std::int64_t end) { done_ = end; }
    // The oldest pending token is known. REQUIRES: pending() > 0.
    void learn_token() {
        --pending_;
        ++known_;
    }
    // Its pages are given up; its tokens are not.
    void retract() {
        lost_ = planned_;
        planned_ = done_ = 0;
    }

    // Returns which invariant is broken, or nothing.
    [[nodiscard]] std::optional<std::string_view> problem() const {
        if (done_ < 0 || pending_ < 0) return "counts below zero";
        if (outputs() < 0 || outputs() > output_len_max_)
            return "has more output than it asked for";
        if (done_ > planned_) return "done before planned";
        if (pending_ == 0 && planned_ > known_) return "plans tokens that are not known";
        if (pending_ > 0 && planned_ > 0 && planned_ != known_ + pending_ - 1)
            return "positions and pending tokens do not add up";
        return std::nullopt;
    }

  private:
    std::int64_t prompt_len_ = 0;
    std::int64_t output_len_max_ = 0;  // at least 0
    std::int64_t known_ = 0;
    std::int64_t planned_ = 0;
    std::int64_t done_ = 0;
    std::int64_t pending_ = 0;
    std::int64_t lost_ = 0;
};

}  // namespace pitstop::scheduler
