// Reads a tokenizer.json. Every component of the file becomes a part of the pipeline. An unknown
// component is never approximated: the error names the component and its place.
//
// Source: the serialization and the defaults of the reference implementation (Hugging Face
// `tokenizers` 0.23). Where the reference would panic, guess or only warn, there is an error here.
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
    std::unique_ptr<const Bpe> model{};  // never null after reading
    PostProcessor post_processor{};
    Decoder decoder{};
    std::vector<std::string> warnings{};  // the parts of the file that have no effect
};

// Errors: kMalformed, kUnsupported, kAlreadyExists, kTooLarge.
Result<TokenizerParts> read_tokenizer_file(std::string_view json);

}  // namespace pitstop::text
