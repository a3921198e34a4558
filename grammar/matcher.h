// Follows one output through its grammar, token by token. Tells which tokens may come next.
//
// Calls use the CPU allowance of the matcher's request (cpu_allowance.h). After the call that uses
// it up, the grammar allows no token.
//
// Thread: one. A copy continues independently, with the same allowance.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "grammar/compiled_grammar.h"
#include "grammar/cpu_allowance.h"

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
    // Added to the allowance for each token of an output that the request brought, without and with
    // a bound on the tokens of a part.
    static constexpr Duration kCpuPerBrought = std::chrono::microseconds(5);
    static constexpr Duration kCpuPerBroughtMask = std::chrono::microseconds(50);

    // `allowance`: of the request, shared because its other matchers use it, too.
    explicit Matcher(
        const std::shared_ptr<const CompiledGrammar>& grammar,
        std::shared_ptr<CpuAllowance> allowance = std::make_shared<CpuAllowance>()
    );
    ~Matcher();
    Matcher(const Matcher& other);
    Matcher& operator=(const Matcher& other);
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    // Continues with the token that was drawn. Returns false if the grammar does not allow it;
    // after that, no token may come next.
    bool accept(TokenId id) { return accept_each(std::span(&id, 1), CpuAllowance::kPerToken); }
    // The same for tokens that the request brought.
    bool accept(std::span<const TokenId> ids);
    // The same for tokens that another matcher with this allowance accepted before. They and the
    // next mask use none of the allowance.
    bool replay(std::span<const TokenId> ids);
    // Returns whether an end-of-sequence token was accepted, so that no token may come next.
    [[nodiscard]] bool has_ended() const;
    // Sets a bit for each token that may come next, and clears all others. Returns false if no
    // token may come next. REQUIRES: words.size() == num_mask_words() of the vocabulary.
    bool fill_mask(std::span<std::uint32_t> words);

  private:
    bool accept_each(std::span<const TokenId> ids, Duration added);
    [[nodiscard]] bool accept_one(TokenId id);
    void apply_bounds();

    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace pitstop::grammar
