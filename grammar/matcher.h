// Follows one output through its grammar, token by token. Tells which tokens may come next.
//
// The parses of an ambiguous grammar may multiply as the output grows. A call may use kCpuMax of
// CPU time, and some more per token. After a call that exceeds this limit, the grammar allows no
// token, so that it cannot delay the steps of other requests.
//
// Thread: one. A copy continues independently.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "grammar/compiled_grammar.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pitstop::grammar {

// Returns the number of words of a mask: a bit per token; token 0 is the lowest bit of word 0.
[[nodiscard]] constexpr std::size_t num_mask_words(std::size_t vocab_len) {
    return (vocab_len + 31) / 32;
}

class Matcher {
  public:
    static constexpr Duration kCpuMax = std::chrono::milliseconds(250);
    static constexpr Duration kCpuPerToken = std::chrono::microseconds(5);
    static constexpr Duration kCpuPerMask = std::chrono::microseconds(50);

    explicit Matcher(const std::shared_ptr<const CompiledGrammar>& grammar);
    ~Matcher();
    Matcher(const Matcher& other);
    Matcher& operator=(const Matcher& other);
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    // Continues with the output's next tokens. Returns false if the grammar does not allow them;
    // after that, no token may come next.
    bool accept(TokenId id) { return accept(std::span(&id, 1)); }
    bool accept(std::span<const TokenId> ids);
    // Returns whether an end-of-sequence token was accepted, so that no token may come next.
    [[nodiscard]] bool has_ended() const;
    // Sets a bit for each token that may come next, and clears all others. Returns false if no
    // token may come next. REQUIRES: words.size() == num_mask_words() of the vocabulary.
    bool fill_mask(std::span<std::uint32_t> words);

  private:
    [[nodiscard]] bool accept_one(TokenId id);
    void apply_bounds();

    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace pitstop::grammar
