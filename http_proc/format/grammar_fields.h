// Reads the fields of every dialect that ask for structured output, into the grammars of the
// sampling parameters.
//
// Source: OpenAI's API reference (response_format, text.format), Anthropic's
// (output_config.format), SGLang's and vLLM's protocol.py.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/sampling.h"

#include <string_view>

namespace pitstop::http {

// All of these functions add errors to `fields`. `body` is the text of the whole body, because
// properties are generated in the order that a schema has in the text.

// Reads `response_format`: text, json_object, json_schema or structural_tag.
void read_response_format(
    FieldReader& fields, std::string_view body, messages::SamplingParams& params
);
// Reads vLLM's `structured_outputs`. `inside`: the body's member that has it; empty: the body.
void read_structured_outputs(
    FieldReader& fields,
    std::string_view body,
    std::string_view inside,
    messages::SamplingParams& params
);
// Reads a `format` that contains its schema: `text.format` of responses, and Anthropic's
// `output_config.format`. `outer`: the member that has the format.
void read_inner_format(
    FieldReader& fields,
    std::string_view body,
    std::string_view outer,
    messages::SamplingParams& params
);

// Returns whether the output must match a grammar.
[[nodiscard]] bool has_grammar(const messages::SamplingParams& params);

// Refuse `response_format` (except text), or both it and `structured_outputs`, on routes that have
// other fields for structured output.
void refuse_response_format(FieldReader& fields, std::string_view why);
void refuse_formats(FieldReader& fields, std::string_view why);

}  // namespace pitstop::http
