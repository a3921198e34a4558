// Reads the fields that ask for an output of a form (structured output), of every dialect, into the
// grammars of the sampling parameters.
//
// Source: OpenAI's API reference (response_format, text.format), Anthropic's
// (output_config.format), SGLang's and vLLM's protocol.py.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/sampling.h"

#include <string_view>

namespace pitstop::http {

// All report problems in `fields`. `body` is the text of the whole body: a schema's properties keep
// its order, in which they are generated.

// Reads `response_format`: text, json_object, json_schema or structural_tag.
void read_response_format(
    FieldReader& fields, std::string_view body, messages::SamplingParams& params
);
// Reads vLLM's `structured_outputs`; `inside` is the member of the body that has it, or empty.
void read_structured_outputs(
    FieldReader& fields,
    std::string_view body,
    std::string_view inside,
    messages::SamplingParams& params
);
// Reads a `format` that has its schema inside itself: `text.format` of responses, and Anthropic's
// `output_config.format`. `outer` is the member that has the format.
void read_inner_format(
    FieldReader& fields,
    std::string_view body,
    std::string_view outer,
    messages::SamplingParams& params
);

// Whether the output must match a grammar.
[[nodiscard]] bool has_grammar(const messages::SamplingParams& params);

// Refuses `response_format` (other than text), or this and `structured_outputs`, on routes that
// have other fields for the same.
void refuse_response_format(FieldReader& fields, std::string_view why);
void refuse_formats(FieldReader& fields, std::string_view why);

}  // namespace pitstop::http
