// Counts the tokens of thinking in a turn of messages (harmony.h), headers and markers included.
//
// Bounded: two numbers, and the parser's bound.
#pragma once

#include "base/ids.h"
#include "http_proc/format/harmony.h"
#include "http_proc/server/token_texts.h"

#include <cstdint>
#include <span>

namespace pitstop::http {

class HarmonyCount {
  public:
    // REQUIRES: `texts` outlives this object.
    HarmonyCount(ThinkingParser::Start start, const TokenTexts* texts)
        : parser_({}, start), texts_(texts) {}

    void add(std::span<const TokenId> ids);
    [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }

  private:
    HarmonyParser parser_;
    const TokenTexts* texts_;
    std::int64_t num_tokens_ = 0;
    std::int64_t num_undecided_ = 0;  // tokens of a header whose kind is unknown
};

}  // namespace pitstop::http
