// Describes the requests of a benchmark: how many, how long, when.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "bench/random.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bench {

inline constexpr std::int64_t kRequestsMax = 1'000'000;
inline constexpr std::int64_t kWorkloadTokensMax = std::int64_t{1} << 28;  // of prompts; of outputs

// Lengths in tokens:
//   128 or fixed:128      always the same
//   uniform:16:512        any from 16 to 512
//   lognormal:200:0.8     exp(normal) with median 200, sigma 0.8; similar to real prompts
//   file:PATH             one length per line, in the file's order, repeated from the start
class LengthDistribution {
  public:
    static Result<LengthDistribution> parse(std::string_view text);

    // Draws the length for request `index`; at least 1.
    [[nodiscard]] std::int64_t draw(Random& random, std::size_t index) const;
    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    enum class Kind { kUniform, kLognormal, kFile };
    LengthDistribution() = default;

    Kind kind_ = Kind::kUniform;
    std::int64_t low_ = 1;
    std::int64_t high_ = 1;
    double median_ = 1;
    double sigma_ = 0;
    std::vector<std::int64_t> from_file_{};
    std::string text_{};
};

struct WorkloadArgs {
    std::int64_t num_requests = 0;
    LengthDistribution prompt_len;
    LengthDistribution output_len;
    std::int64_t shared_prefix_len = 0;  // tokens in front of every prompt, the same in a group
    std::int64_t prefix_groups = 1;      // request i is in group i % groups
    std::optional<double> rate{};        // Poisson arrivals per second; none: all at once
    std::uint64_t seed = 0;
    std::int64_t vocab = 0;  // prompts are uniform over its tokens
    std::int64_t context_len = 0;
};

struct PlannedRequest {
    Duration arrival{};  // relative to the start of the workload
    std::vector<TokenId> prompt{};
    std::int64_t output_len = 0;
};

struct Workload {
    std::vector<PlannedRequest> requests{};  // by arrival
    std::int64_t prompt_tokens = 0;
    std::int64_t output_tokens = 0;
    std::int64_t num_cut = 0;  // lengths that were cut to fit the context
};

// Appends `count` random tokens. Special tokens may be among them: a benchmark does not care.
void append_tokens(
    Random& random, std::int64_t count, std::int64_t vocab, std::vector<TokenId>& to
);

// Errors: no requests or too many, more tokens than kWorkloadTokensMax, a prefix that leaves no
// room in the context.
[[nodiscard]] Result<Workload> make_workload(const WorkloadArgs& args);

}  // namespace pitstop::bench
