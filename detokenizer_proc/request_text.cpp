#include "detokenizer_proc/request_text.h"

#include "messages/chunks.h"

#include <utility>

namespace pitstop::detokenizer {

Result<RequestText> RequestText::create(
    std::shared_ptr<const text::Tokenizer> tokenizer, messages::TextOptions options
) {
    std::optional<text::StopMatcher> matcher;
    if (!options.stop.empty()) {
        ASSIGN_OR_RETURN(const auto stops, text::StopStrings::create(options.stop));
        matcher.emplace(
            stops,
            options.no_stop_trim ? text::StopMatcher::Trim::kNothing
                                 : text::StopMatcher::Trim::kStop
        );
    }
    return RequestText(std::move(tokenizer), std::move(options), std::move(matcher));
}

RequestText::RequestText(
    std::shared_ptr<const text::Tokenizer> tokenizer,
    messages::TextOptions options,
    std::optional<text::StopMatcher> matcher
)
    : options_(std::move(options)),
      decoder_(
          std::move(tokenizer),
          {.skip_special =
               options_.skip_special_tokens ? text::SkipSpecial::kYes : text::SkipSpecial::kNo,
           .spaces_between_special_tokens = options_.spaces_between_special_tokens},
          options_.prompt_tail
      ),
      matcher_(std::move(matcher)) {}

RequestText::Step RequestText::append(messages::OutputChunk chunk) {
    Step taken;
    if (has_ended_) return taken;
    const bool scheduler_ended = chunk.finish.has_value();
    // Counts of chunks between the first and the last stay in this process: they are sent only if a
    // stop text ends the request.
    const bool is_told = counts_.has_value() && !scheduler_ended;
    if (chunk.counts) counts_ = is_told ? std::exchange(chunk.counts, std::nullopt) : chunk.counts;
    if (options_.text_output) {
        if (auto added = add_text(chunk); !added) {
            chunk.finish = messages::Finish{
                .reason = messages::FinishReason::kError,
                .verdict =
                    Error{
                        added.error().code,
                        "the output cannot be decoded: " + added.error().message},
            };
        }
    }
    has_ended_ = chunk.finish.has_value();
    taken.stopped = has_ended_ && !scheduler_ended;
    if (options_.stream) {
        taken.chunk = std::move(chunk);
        return taken;
    }
    if (held_) {
        messages::append_chunk(*held_, std::move(chunk));
    } else {
        held_ = std::move(chunk);
    }
    if (has_ended_ || messages::bytes_bound(*held_) > kHeldBytesMax) {
        taken.chunk = std::exchange(held_, std::nullopt);
    }
    return taken;
}

// Fills chunk.text, and ends the chunk at a stop text.
Result<> RequestText::add_text(messages::OutputChunk& chunk) {
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        RETURN_IF_ERROR(push_token(chunk, i, chunk.text));
        if (matcher_ && matcher_->match()) {
            end_at_match(chunk, i + 1);
            return Ok{};
        }
    }
    if (!chunk.finish) return Ok{};
    RETURN_IF_ERROR(push_rest(chunk.text));
    if (matcher_ && matcher_->match()) end_at_match(chunk, chunk.tokens.size());
    return Ok{};
}

Result<> RequestText::push_token(
    const messages::OutputChunk& chunk, std::size_t index, std::string& text
) {
    ++num_tokens_;
    if (is_trimmed(chunk, index)) return Ok{};
    piece_.clear();
    RETURN_IF_ERROR(decoder_.push(chunk.tokens[index], piece_));
    push_piece(text);
    return Ok{};
}

// The output is complete: adds text that was withheld because the rest of a code point or of a stop
// text might have followed.
Result<> RequestText::push_rest(std::string& text) {
    piece_.clear();
    RETURN_IF_ERROR(decoder_.finish(piece_));
    push_piece(text);
    if (matcher_ && !matcher_->match()) matcher_->finish(text);
    return Ok{};
}

void RequestText::push_piece(std::string& text) {
    // Text before min_new_tokens cannot be a part of a stop text.
    if (!matcher_ || num_tokens_ < options_.min_new_tokens) {
        text += piece_;
    } else {
        matcher_->push(piece_, text);
    }
}

// Returns whether to omit the text of the stop token. The token ends the output; its text is a part
// of the output only on request.
bool RequestText::is_trimmed(const messages::OutputChunk& chunk, std::size_t index) const {
    return !options_.no_stop_trim && index + 1 == chunk.tokens.size() && chunk.finish &&
           chunk.finish->reason == messages::FinishReason::kStop &&
           chunk.finish->matched_token == chunk.tokens[index];
}

void RequestText::end_at_match(messages::OutputChunk& chunk, std::size_t num_tokens) {
    messages::keep_tokens(chunk, num_tokens);
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kStop,
        .matched_text = options_.stop[matcher_->match()->stop_index],
    };
    chunk.counts = counts_;
    if (chunk.counts) chunk.counts->completion_tokens = num_tokens_;
}

}  // namespace pitstop::detokenizer
