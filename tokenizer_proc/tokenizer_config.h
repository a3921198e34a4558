// The tokenizer's description in a model's files, for programs that render chats themselves.
//
// Source: vLLM's /tokenizer_info: the tokenizer's settings, tokens as texts, no paths.
#pragma once

#include "base/result.h"

#include <string>

namespace pitstop::tokenizer {

// Returns a JSON object: the members of `model_dir`/tokenizer_config.json, if the file exists, with
// tokenizer_class. Adds chat_template if the model has one: the text of chat_template.jinja, or of
// the template named "default" among several. Errors: a file is malformed.
Result<std::string> read_tokenizer_config(const std::string& model_dir);

}  // namespace pitstop::tokenizer
