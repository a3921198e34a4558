// Decodes a request's output token by token. Each push returns the text that has become final.
//
// The output is decoded as the continuation of its prompt, for two reasons. Decoders may treat the
// beginning of a sequence differently (SentencePiece's drops the first space). The prompt may end
// within a code point. So the end of the prompt passes through the same stages first. The
// concatenated results of all pushes and of finish() are
//
//     decode(prompt + output)  after the text of the prompt's complete code points.
//
// Other engines get the same result by decoding a window of tokens twice (prefix and read offset).
// Here the stages keep state (decoder.h), so a push costs only its own token, and no window can
// give another result than the complete text. Text that a later token may change is withheld: a
// part of a code point, a run of byte-fallback tokens (one bad byte spoils the run), and text that
// a decoder may strip at the end. If the output spoils a run that began in the prompt, the run's
// text belongs to the output.
//
// Thread:  one at a time.
// Bounded: the unfinished text of the last token or of the last run of bytes.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/decoder.h"
#include "text/tokenizer.h"

#include <memory>
#include <span>
#include <string>

namespace pitstop::text {

class IncrementalDecoder {
  public:
    struct Options {
        SkipSpecial skip_special = SkipSpecial::kYes;
        // If false, an added token directly after another one decodes without the space that some
        // decoders put before it (as in vLLM when special tokens are kept).
        bool spaces_between_special_tokens = true;
    };
    // This many ids from the end of a prompt are enough. The longest code point is four byte
    // tokens. This many ids also contain some text, and after text the rules for the beginning of a
    // sequence do not apply. All ids of a shorter prompt are used.
    static constexpr std::size_t kPromptTailLen = 16;

    // Uses the last kPromptTailLen ids of `prompt`.
    IncrementalDecoder(
        std::shared_ptr<const Tokenizer> tokenizer, Options options, std::span<const TokenId> prompt
    );

    // Appends to `text` the code points that became final.
    Result<> push(TokenId id, std::string& text);
    // Ends the output: appends the withheld text. REQUIRES: no push follows.
    Result<> finish(std::string& text);

  private:
    // Shared, because a request may outlive the process's own reference to its tokenizer.
    std::shared_ptr<const Tokenizer> tokenizer_;
    Options options_;
    Result<> push_to_stream(TokenId id, std::string& text);
    void remove_prompt(std::string& text, std::size_t begin);

    Decoder::Stream stream_;
    std::string prompt_rest_{};  // the prompt's text that is still in the stream
    bool last_was_added_ = false;
};

}  // namespace pitstop::text
