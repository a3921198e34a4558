// Gives the text of a request's output, token by token: each push gives the text that is final by
// then.
//
// The output is decoded as the continuation of its prompt. A decoder may treat the beginning of a
// whole sequence apart (SentencePiece's drops the first space), and the prompt may end in the
// middle of a code point, so the end of the prompt is run through the same stages first. What the
// pushes and finish() give, one behind another, is
//
//     decode(prompt + output)  behind the text of the prompt's complete code points,
//
// which is what other engines get by decoding a window of tokens twice (prefix and read offset),
// but by stages that remember (decoder.h): a push costs what its own token costs, nothing is
// decoded again, and it cannot come out differently in a window than in the whole. Text is held
// back while a later token may still change it: part of a code point, a run of byte-fallback tokens
// (one bad byte spoils the run), what a decoder strips at the end. If the output spoils a run that
// began in the prompt, the text of that run is the output's.
//
// Thread:  one at a time.
// Bounded: holds what the last token or byte run left unfinished.
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
        // As in vLLM, where special tokens are kept and this is off, an added token directly behind
        // another is its own text alone, without the space some decoders put before it.
        bool spaces_between_special_tokens = true;
    };
    // This many ids from the end of a prompt are as good as all of it: the longest code point is
    // four byte tokens, and some text among so many ids says that the beginning is past. A shorter
    // prompt is given whole.
    static constexpr std::size_t kPromptTailLen = 16;

    // Takes the last kPromptTailLen ids of `prompt` into account.
    IncrementalDecoder(
        std::shared_ptr<const Tokenizer> tokenizer, Options options, std::span<const TokenId> prompt
    );

    // Appends to `text` what became final. Whole code points only.
    Result<> push(TokenId id, std::string& text);
    // The output is complete: appends the rest. Nothing may be pushed after it.
    Result<> finish(std::string& text);

  private:
    // It is shared because a request may outlive the process's interest in the tokenizer it came
    // with.
    std::shared_ptr<const Tokenizer> tokenizer_;
    Options options_;
    Result<> push_to_stream(TokenId id, std::string& text);
    void take_off_prompt(std::string& text, std::size_t begin);

    Decoder::Stream stream_;
    std::string prompt_rest_{};  // text of the prompt that the stream still holds
    bool last_was_added_ = false;
};

}  // namespace pitstop::text
