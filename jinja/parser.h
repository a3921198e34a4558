// Turns a template's tokens into its tree. Source: Jinja 3.1, parser.py.
//
// What Jinja has and this library has not (blocks of inheritance, includes, some filters) is an
// error here, with line and name, not when a chat is rendered.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"

#include <string_view>

namespace pitstop::jinja {

// Bounds nested expressions and nested statements: a parser may recurse this deep.
inline constexpr int kNestingMax = 100;
inline constexpr std::size_t kSourceBytesMax = std::size_t{1} << 20;

// Errors: kInvalidArgument (syntax), kUnsupported (not in this library), kTooLarge; each names the
// line.
[[nodiscard]] Result<Body> parse(std::string_view source);

}  // namespace pitstop::jinja
