#include "tokenizer_proc/tokenized_request.h"

#include "text/incremental_decoder.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

messages::TokenizedRequest tokenized_request(
    messages::Generate message, std::vector<TokenId> prompt
) {
    const std::size_t tail_len = std::min(prompt.size(), text::IncrementalDecoder::kPromptTailLen);
    messages::TokenizedRequest made;
    made.text = {
        .prompt_tail = {prompt.end() - static_cast<std::ptrdiff_t>(tail_len), prompt.end()},
        .stop = std::exchange(message.sampling.stop, {}),
        .min_new_tokens = message.sampling.min_new_tokens,
        .no_stop_trim = message.sampling.no_stop_trim,
        .skip_special_tokens = message.sampling.skip_special_tokens,
        .spaces_between_special_tokens = message.sampling.spaces_between_special_tokens,
        .stream = message.stream,
        .text_output = message.text_output,
    };
    made.sampling = std::move(message.sampling);
    made.logprobs = std::move(message.logprobs);
    made.routed_experts_start = message.routed_experts_start;
    if (message.routed_experts) made.routed_experts = std::move(message.routed_experts->experts);
    made.priority = message.priority;
    made.kv_tolerance = message.kv_tolerance;
    made.kv_max_lag = message.kv_max_lag;
    made.client = std::move(message.client);
    made.adapter = std::move(message.adapter);
    made.draft_ids = std::move(message.draft_ids);
    made.draft_key = std::move(message.draft_key);
    made.prompt.values = std::move(prompt);
    return made;
}

}  // namespace pitstop::tokenizer
