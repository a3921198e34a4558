// Finds keywords of JSON schemas that the compiler ignores, so that outputs might not match their
// schema. A grammar with such a keyword is refused.
#pragma once

#include "messages/grammars.h"

#include <string>

namespace pitstop::grammar {

// Returns the first keyword that the compiler would ignore in the grammar's schemas; empty: none.
[[nodiscard]] std::string ignored_keyword(const messages::Grammar& grammar);

}  // namespace pitstop::grammar
