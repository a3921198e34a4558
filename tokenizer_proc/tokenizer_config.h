// Tells what a model's files say of its tokenizer, for programs that render chats themselves.
//
// Source: vLLM's /tokenizer_info: what the tokenizer was made with, tokens as their texts, no
// paths.
#pragma once

#include "base/result.h"

#include <string>

namespace pitstop::tokenizer {

// Returns a JSON object: the members of `model_dir`/tokenizer_config.json, where there is such a
// file, with tokenizer_class, and chat_template where the model has one: chat_template.jinja's
// text, or the one of the name "default" where there are several. Errors: a file is broken.
Result<std::string> read_tokenizer_config(const std::string& model_dir);

}  // namespace pitstop::tokenizer
