// The support of a draw: the tokens that could be drawn, after the grammar, top-k, top-p and min-p.
// A trainer repeats the truncation with the support.
//
// Bounded: kSupportMax ids per draw. A larger support is only counted, and ends its request.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pitstop::messages {

inline constexpr std::int64_t kSupportMax = 4096;  // SGLang's --sampling-mask-max-tokens

// The support of one output token, as a worker reports it.
struct DrawSupport {
    std::int64_t num_ids = 0;
    std::vector<TokenId> ids{};
    float logprob = 0;

    template <class F>
    void fields(F&& f) {
        f("num_ids", num_ids, "tokens of the support; 0: nothing was drawn");
        f("ids", ids, "these tokens, ascending; left out if they are more than 4096");
        f("logprob",
          logprob,
          "logprob of the drawn token, with the probabilities of the support scaled to sum to 1");
    }
    friend bool operator==(const DrawSupport&, const DrawSupport&) = default;
};

// The supports of n output tokens.
struct Supports {
    std::vector<std::int32_t> sizes{};
    std::vector<TokenId> ids{};
    std::vector<float> logprobs{};

    void append(const DrawSupport& next);
    void append(Supports next);
    // Keeps the supports of the first `num` tokens. REQUIRES: 0 <= num <= the number of tokens.
    void keep(std::size_t num);

    template <class F>
    void fields(F&& f) {
        f("sizes",
          sizes,
          "[n], the size of each output token's support: how many tokens it was drawn among");
        f("ids", ids, "[sum of sizes], the ids in each support, ascending, supports back to back");
        f("logprobs",
          logprobs,
          "[n], the logprob of each output token, with the probabilities of its support scaled to "
          "sum to 1");
    }
    friend bool operator==(const Supports&, const Supports&) = default;
};

// Appends the supports that follow those of `whole`. Either may be absent.
void append_supports(std::optional<Supports>& whole, std::optional<Supports> next);

}  // namespace pitstop::messages
