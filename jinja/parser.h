// Builds a template's tree from its tokens. Source: Jinja 3.1, parser.py.
//
// Jinja features that are missing here (inheritance blocks, includes, some filters) fail while
// parsing, with line and name, and not when a chat is rendered.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"

#include <string_view>

namespace pitstop::jinja {

// The limit of nested expressions and of nested statements: the parser's depth of recursion.
inline constexpr int kNestingMax = 100;
inline constexpr std::size_t kSourceBytesMax = std::size_t{1} << 20;

// Errors: kInvalidArgument (syntax), kUnsupported (missing here), kTooLarge; each names the line.
[[nodiscard]] Result<Body> parse(std::string_view source);

}  // namespace pitstop::jinja
