// The position of a request in its sequence: the prompt's tokens, then the output's.
//
//     0 ...... done ...... planned ...... known
//
// Positions [0, done) have KV now; [0, planned) will have KV once the steps in flight are done.
// Tokens [0, known) are known, and steps in flight sample `pending` more. While tokens are pending,
// the newest of them is sampled after the last planned position.
//
// The last tokens of a planned row may be drafts (messages/drafts.h). Then some pending outputs
// count only if the drafts before them are right. Nothing more is planned until the row's result
// tells how many outputs count.
//
// All counts are numbers of tokens. The operations keep the invariants that problem() checks.
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
    // Pending tokens may outlive a run: a retracted request still gets the tokens that steps in
    // flight sample.
    [[nodiscard]] std::int64_t pending() const { return pending_; }
    // The drafts in the step in flight; 0: none.
    [[nodiscard]] std::int64_t drafted() const { return drafted_; }
    // The number of positions whose KV the last retraction discarded.
    [[nodiscard]] std::int64_t lost() const { return lost_; }

    // Returns whether another token may be sampled after the known and pending ones.
    [[nodiscard]] bool may_sample() const { return outputs() + pending_ < output_len_max_; }
    // The tokens that the next step could process: all known tokens without KV, or the one that is
    // being sampled.
    [[nodiscard]] std::int64_t plannable() const {
        if (drafted_ > 0) return 0;
        if (pending_ == 0) return known_ - planned_;
        return may_sample() ? 1 : 0;
    }

    // The request runs; the prefix cache has KV of `num_cached` positions. REQUIRES: nothing is
    // planned or pending; num_cached < known().
    void start(std::int64_t num_cached) { planned_ = done_ = num_cached; }
    // A step computes the next `num_new` positions, and may sample a token after them. REQUIRES: 0
    // < num_new <= plannable(); `samples` only if may_sample().
    void plan(std::int64_t num_new, bool samples) {
        planned_ += num_new;
        pending_ += samples ? 1 : 0;
    }
    // A step computes the next position, whose token is known, and the positions of `num_drafted`
    // drafts, and samples a token after each. REQUIRES: plannable() == 1, pending() == 0; there is
    // room for the drafts and one more output.
    void plan_drafts(std::int64_t num_drafted) {
        planned_ += 1 + num_drafted;
        pending_ += 1 + num_drafted;
        drafted_ = num_drafted;
    }
    // Ends a step with drafts, after learn_token() for each output that counts: other outputs are
    // no longer pending, and positions of wrong drafts no longer planned.
    void end_drafts() {
        if (planned_ > 0) planned_ -= pending_;
        pending_ = 0;
        drafted_ = 0;
    }
    // A step is done; the last position of its row is `end` - 1.
    void finish_step(std::int64_t end) { done_ = end; }
    // The oldest pending token is known now. REQUIRES: pending() > 0.
    void learn_token() {
        --pending_;
        ++known_;
    }
    // Gives up the KV; the tokens stay.
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
        if (drafted_ < 0 || (drafted_ > 0 && pending_ == 0))
            return "has drafts without the outputs that verify them";
        return std::nullopt;
    }

  private:
    std::int64_t prompt_len_ = 0;
    std::int64_t output_len_max_ = 0;  // at least 0
    std::int64_t known_ = 0;
    std::int64_t planned_ = 0;
    std::int64_t done_ = 0;
    std::int64_t pending_ = 0;
    std::int64_t drafted_ = 0;
    std::int64_t lost_ = 0;
};

}  // namespace pitstop::scheduler
