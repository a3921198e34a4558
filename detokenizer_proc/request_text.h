// Turns one request's tokens into text: decodes them and finds stop texts. Withholds the output of
// a request that does not stream until its end.
//
// Bounded: an unfinished code point, less than the longest stop text, and if the request does not
//          stream, kHeldBytesMax. Then a chunk is sent early, because clients join chunks.
#pragma once

#include "base/result.h"
#include "messages/generation.h"
#include "text/incremental_decoder.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <memory>
#include <optional>

namespace pitstop::detokenizer {

class RequestText {
  public:
    static constexpr std::size_t kHeldBytesMax = std::size_t{4} << 20;

    // Errors: a stop text that cannot be matched.
    static Result<RequestText> create(
        std::shared_ptr<const text::Tokenizer> tokenizer, messages::TextOptions options
    );

    struct Step {
        std::optional<messages::OutputChunk> chunk{};  // to be sent; absent: the output is withheld
        bool stopped = false;  // a stop text ended the request; its scheduler must be told
    };
    // Appends the next chunk. After a chunk with `finish`, later chunks are dropped.
    [[nodiscard]] Step append(messages::OutputChunk chunk);

  private:
    RequestText(
        std::shared_ptr<const text::Tokenizer> tokenizer,
        messages::TextOptions options,
        std::optional<text::StopMatcher> matcher
    );

    Result<> add_text(messages::OutputChunk& chunk);
    Result<> push_token(const messages::OutputChunk& chunk, std::size_t index, std::string& text);
    Result<> push_rest(std::string& text);
    void push_piece(std::string& text);
    [[nodiscard]] bool is_trimmed(const messages::OutputChunk& chunk, std::size_t index) const;
    void end_at_match(messages::OutputChunk& chunk, std::size_t num_tokens);

    messages::TextOptions options_;
    text::IncrementalDecoder decoder_;
    std::optional<text::StopMatcher> matcher_;  // absent without stop texts
    std::string piece_{};                       // the text that the last token added
    std::int64_t num_tokens_ = 0;
    std::optional<messages::RequestCounts> counts_{};  // the latest counts, sent with a stop text
    // if the request does not stream: its output so far
    std::optional<messages::OutputChunk> held_{};
    bool has_ended_ = false;
};

}  // namespace pitstop::detokenizer
