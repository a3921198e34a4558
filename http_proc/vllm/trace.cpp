#include "http_proc/vllm/trace.h"

#include "http_proc/format/grammar_fields.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pitstop::http {
namespace {

// Moves the entries of the last `num` positions, `width` each, from `values` to `to`.
template <class T>
void move_last(std::vector<T>& values, std::size_t num, std::size_t width, std::vector<T>& to) {
    const auto begin =
        values.end() - static_cast<std::ptrdiff_t>(std::min(values.size(), num * width));
    to.assign(begin, values.end());
    values.erase(begin, values.end());
}

}  // namespace

Result<> prepare_trace(VllmGenerate& call) {
    if (call.trace.empty()) return Ok{};
    const OpenAiOptions& options = call.options;
    struct Wrong {
        bool is_given = false;
        std::string_view field{};
    };
    for (const auto& [is_given, field] : {
             Wrong{options.is_streamed, "stream"},
             Wrong{options.n > 1, "n"},
             Wrong{call.shows_text, "output_mode text"},
             Wrong{call.wants_mask, "return_sampling_mask"},
             Wrong{call.wants_packed_support, "return_sample_support"},
             Wrong{call.candidates.has_value(), "prompt_logprob_token_ids"},
             Wrong{has_grammar(options.sampling), "structured_outputs"},
             Wrong{options.routes.start.has_value(), "routed_experts"},
             Wrong{options.logprobs_mode != messages::LogprobsMode::kRaw, "logprobs_mode"},
         }) {
        if (!is_given) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "sampling_params.trace_decode_token_ids is given, and {} with it is not supported: "
            "the tokens are scored in one pass, raw, and none is drawn",
            field
        );
    }
    messages::SamplingParams& sampling = call.options.sampling;
    sampling.max_new_tokens = 0;
    sampling.min_new_tokens = 0;
    sampling.stop.clear();
    return Ok{};
}

void show_trace(
    std::span<const TokenId> trace,
    const messages::LogprobOptions& asked,
    messages::OutputChunk& chunk
) {
    if (!chunk.finish || chunk.finish->reason != messages::FinishReason::kLength) return;
    const std::size_t num = trace.size();
    chunk.tokens.assign(trace.begin(), trace.end());
    for (messages::Span& span : chunk.spans) span.tokens = static_cast<std::int64_t>(num);
    if (chunk.counts) {
        messages::RequestCounts& counts = *chunk.counts;
        counts.prompt_tokens -= static_cast<std::int64_t>(num);
        counts.cached_tokens = std::min(counts.cached_tokens, counts.prompt_tokens);
        counts.completion_tokens = static_cast<std::int64_t>(num);
    }
    if (!chunk.prompt) return;
    messages::PromptLogprobs& scores = *chunk.prompt;
    move_last(scores.logprobs, num, 1, chunk.logprobs);
    move_last(scores.ranks, num, 1, chunk.ranks);
    const auto num_top = static_cast<std::size_t>(asked.top);
    move_last(scores.top_ids, num, num_top, chunk.top_ids);
    move_last(scores.top_logprobs, num, num_top, chunk.top_logprobs);
    move_last(scores.ids_logprobs, num, asked.ids.size(), chunk.ids_logprobs);
}

}  // namespace pitstop::http
