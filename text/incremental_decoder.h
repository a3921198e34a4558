// Decodes a request's output token by token: each push returns the text that has become final.
//
// The output is decoded as the continuation of its prompt. A decoder may treat the beginning of a
// sequence differently (SentencePiece's drops the first space), and the prompt may end inside a
// code point, so the end of the prompt runs through the same stages first. The results of all
// pushes and finish(), concatenated, are
//
//     decode(prompt + output)  after the text of the prompt's complete code points.
//
// Other engines get the same by decoding a window of tokens twice (prefix and read offset). Here
// the stages have memory (decoder.h): a push costs only its own token, nothing is decoded again,
// and a window cannot differ from the whole. Text is held back while a later token may still change
// it: part of a code point, a run of byte-fallback tokens (one bad byte spoils the run), text that
// a decoder may strip at the end. If the output spoils a run that began in the prompt, the run's
// text belongs to the output.
//
// Thread:  one at a time.
// Bounded: holds only the unfinished text of the last token or byte run.
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
        // If false, an added token directly after another one decodes to its text alone, without
        // the space that some decoders put before it (as in vLLM where special tokens are kept).
        bool spaces_between_special_tokens = true;
    };
    // This many ids from the end of a prompt suffice. The longest code point is four byte tokens,
    // and this many ids contain some text, after which the rules for the beginning no longer apply.
    // A shorter prompt is passed whole.
    static constexpr std::size_t kPromptTailLen = 16;

    // Uses the last kPromptTailLen ids of `prompt`.
    IncrementalDecoder(
        std::shared_ptr<const Tokenizer> tokenizer, Options options, std::span<const TokenId> prompt
    );

    // Appends to `text` what became final: whole code points only.
    Result<> push(TokenId id, std::string& text);
    // The output is complete: appends the rest. No push may follow.
    Result<> finish(std::string& text);

  private:
    // Shared, because a request may outlive the process's own reference to its tokenizer.
    std::shared_ptr<const Tokenizer> tokenizer_;
    Options options_;
    Result<> push_to_stream(TokenId id, std::string& text);
    void remove_prompt(std::string& text, std::size_t begin);

    Decoder::Stream stream_;
    std::string prompt_rest_{};  // text of the prompt that is still in the stream
    bool last_was_added_ = false;
};

}  // namespace pitstop::text
