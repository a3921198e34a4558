// Reads a tokenizer.json: every component it names becomes a part of the pipeline, and one that is
// not known here is an Error that says which and where, never something like it.
//
// Source: the reference implementation's serialization (Hugging Face `tokenizers` 0.23). Its
// defaults are kept; where it would panic, guess or only warn, this is an Error.
#pragma once

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

struct TokenizerParts {
    AddedTokens added_tokens{};
    Normalizer normalizer{};
    PreTokenizer pre_tokenizer{};
    std::unique_ptr<const Bpe> model{};  // never null once read
    PostProcessor post_processor{};
    Decoder decoder{};
    std::vector<std::string> warnings{};  // what the file says and does not get
};

// Fails with kMalformed, kUnsupported, kAlreadyExists or kTooLarge.
Result<TokenizerParts> read_tokenizer_file(std::string_view json);

}  // namespace pitstop::text
