#include "tp_worker/model/request_state.h"

#include "tp_worker/model/grammars.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
// A bias is limited to this, to stay finite when it is added to a logit and divided by
// a temperature.
constexpr double kBiasMax = 1e30;

}  // namespace

RequestState::RequestState(
    const messages::RequestSetup& setup,
    std::int64_t vocab_len,
    const std::shared_ptr<const grammar::CompiledGrammar>& grammar,
    const std::shared_ptr<grammar::CpuAllowance>& allowance
)
    : prompt_len_(setup.prompt_len),
      min_new_tokens_(setup.sampling.min_new_tokens),
      grammar_(setup.grammar),
      stop_ids_(setup.stop_ids),
      logprobs_(setup.logprobs) {
    const messages::SamplingParams& params = setup.sampling;
    if (params.temperature >= kTemperatureMin) {
        sample_.temperature = static_cast<float>(params.temperature);
    }
    if (params.top_k && *params.top_k < kernels::kTopKOff) {
        sample_.top_k = static_cast<std::int32_t>(*params.top_k);
    }
    // A top_p that fp32 rounds to 0 still keeps the best id.
    sample_.top_p = std::max(static_cast<float>(params.top_p), std::numeric_limits<float>::min());
    sample_.min_p = static_cast<float>(params.min_p);
    sample_.seed = params.seed.value_or(0);

    penalty_ = {
        .repetition = static_cast<float>(params.repetition_penalty),
        .frequency = static_cast<float>(params.frequency_penalty),
        .presence = static_cast<float>(params.presence_penalty),
    };
    has_penalty_ =
        penalty_.repetition != 1.f || penalty_.frequency != 0.f || penalty_.presence != 0.f;
    if (has_penalty_) {
        const std::int64_t output_begin = prompt_len_ - params.num_output_in_prompt;
        for (std::size_t i = 0; i < setup.history.size(); ++i) {
            const bool is_output = static_cast<std::int64_t>(i) >= output_begin;
            count(setup.history[i], is_output ? 1 : 0);
        }
    }
    set_biases(params, vocab_len);
    set_bad_tokens(setup);
    if (grammar) set_grammar(setup, vocab_len, grammar, allowance);
}

// Follows the output so far, so that the matcher of a retracted request returns to its earlier
// state.
void RequestState::set_grammar(
    const messages::RequestSetup& setup,
    std::int64_t vocab_len,
    const std::shared_ptr<const grammar::CompiledGrammar>& grammar,
    const std::shared_ptr<grammar::CpuAllowance>& allowance
) {
    matcher_.emplace(grammar, allowance);
    mask_.resize(grammar::num_mask_words(static_cast<std::size_t>(vocab_len)));
    const auto output_begin = std::min(
        static_cast<std::size_t>(prompt_len_ - setup.sampling.num_output_in_prompt),
        setup.history.size()
    );
    const std::span<const TokenId> output = std::span(setup.history).subspan(output_begin);
    const bool was_followed = allowance->begin();
    const std::size_t num_brought =
        was_followed
            ? 0
            : std::min(static_cast<std::size_t>(prompt_len_) - output_begin, output.size());
    matcher_->accept(output.first(num_brought));
    if (was_followed || num_brought < output.size()) matcher_->replay(output.subspan(num_brought));
    set_mask();
}

void RequestState::free_forgotten(const Grammars& grammars) {
    if (matcher_ && !grammars.find(*grammar_)) matcher_.reset();
}

// After the grammar's end no draw counts, so none is restricted.
void RequestState::set_mask() {
    if (matcher_->has_ended()) {
        mask_.clear();
    } else {
        matcher_->fill_mask(mask_);
    }
}

void RequestState::set_biases(const messages::SamplingParams& params, std::int64_t vocab_len) {
    std::map<TokenId, float> biases;
    for (const auto& [id, bias] : params.logit_bias) {
        biases[static_cast<TokenId>(id)] =
            static_cast<float>(std::clamp(bias, -kBiasMax, kBiasMax));
    }
    if (!params.allowed_token_ids.empty()) {
        std::vector<bool> is_allowed(static_cast<std::size_t>(vocab_len), false);
        for (const TokenId id : params.allowed_token_ids)
            is_allowed[static_cast<std::size_t>(raw(id))] = true;
        for (std::int32_t id = 0; id < vocab_len; ++id) {
            if (!is_allowed[static_cast<std::size_t>(id)]) biases[TokenId{id}] = kBanned;
        }
    }
    for (const std::vector<TokenId>& sequence : params.bad_tokens) {
        if (sequence.size() == 1) biases[sequence.front()] = kBanned;
    }
    for (const auto& [id, bias] : biases) biases_.now.push_back({id, bias});
    if (min_new_tokens_ == 0) return;
    for (const TokenId id : stop_ids_) biases[id] = kBanned;
    for (const auto& [id, bias] : biases) early_biases_.now.push_back({id, bias});
}

// Keeps sequences of two tokens or more: whether their last token is allowed depends on the output.
void RequestState::set_bad_tokens(const messages::RequestSetup& setup) {
    for (const std::vector<TokenId>& sequence : setup.sampling.bad_tokens) {
        if (sequence.size() == 1) continue;
        bad_tokens_.push_back(sequence);
        tail_len_max_ = std::max(tail_len_max_, sequence.size() - 1);
    }
    if (bad_tokens_.empty()) return;
    const auto output_begin =
        static_cast<std::size_t>(prompt_len_ - setup.sampling.num_output_in_prompt);
    const std::size_t num_output =
        setup.history.size() - std::min(setup.history.size(), output_begin);
    const auto tail_len = static_cast<std::ptrdiff_t>(std::min(num_output, tail_len_max_));
    output_tail_.assign(setup.history.end() - tail_len, setup.history.end());
    biases_.always = biases_.now;
    early_biases_.always = early_biases_.now;
    ban_completions();
}

// Makes the biases of the next token: bans the last token of each bad sequence whose other tokens
// end the output.
void RequestState::ban_completions() {
    std::vector<TokenId> banned;
    for (const std::vector<TokenId>& sequence : bad_tokens_) {
        const std::size_t num = sequence.size() - 1;
        if (num > output_tail_.size()) continue;
        if (std::equal(
                sequence.begin(),
                sequence.end() - 1,
                output_tail_.end() - static_cast<std::ptrdiff_t>(num)
            ))
            banned.push_back(sequence.back());
    }
    for (Biases* biases : {&biases_, &early_biases_}) {
        biases->now = biases->always;
        for (const TokenId id : banned) {
            const auto place = std::ranges::lower_bound(
                biases->now, id, {}, [](const kernels::LogitBias& bias) { return bias.id; }
            );
            if (place != biases->now.end() && place->id == id) {
                place->bias = kBanned;
            } else {
                biases->now.insert(place, {id, kBanned});
            }
        }
    }
}

kernels::SampleRow RequestState::draw(std::int64_t output_index) const {
    kernels::SampleRow row = sample_;
    row.position = static_cast<std::uint32_t>(prompt_len_ + output_index);
    return row;
}

void RequestState::count(TokenId id, std::int32_t num_output) {
    const auto [place, is_new] = count_of_.emplace(id, counts_.size());
    if (is_new) counts_.push_back({.id = id});
    counts_[place->second].num_output += num_output;
}

void RequestState::record_sampled(TokenId id) {
    last_token_ = id;
    if (raw(id) < 0) return;
    if (has_penalty_) count(id, 1);
    if (matcher_ && !matcher_->has_ended()) {
        matcher_->accept(id);
        set_mask();
    }
    if (bad_tokens_.empty()) return;
    if (output_tail_.size() == tail_len_max_) output_tail_.erase(output_tail_.begin());
    output_tail_.push_back(id);
    ban_completions();
}

}  // namespace pitstop::tp_worker
