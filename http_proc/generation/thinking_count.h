// Counts the tokens of a turn's thinking: all of them, markers included, and those between the
// markers, which a budget limits.
//
// Bounded: a number for each token that may belong to a marker.
#pragma once

#include "base/ids.h"
#include "http_proc/format/thinking.h"
#include "http_proc/server/token_texts.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

namespace pitstop::http {

class ThinkingCount {
  public:
    // REQUIRES: `texts` outlives this object.
    ThinkingCount(
        const ThinkingFormat& format, ThinkingParser::Start start, const TokenTexts* texts
    )
        : parser_(format, start), interrupted_by_(format.interrupted_by), texts_(texts) {}

    void add(std::span<const TokenId> ids);
    // Returns the number of tokens of thinking, markers included. Counts a token that ends thinking
    // and begins the answer.
    [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
    // Returns the number of tokens that have a part of the text between the markers.
    [[nodiscard]] std::int64_t num_between() const { return num_between_; }

  private:
    void add_one(TokenId id);
    void leave_out(std::size_t num_bytes);

    ThinkingParser parser_;
    std::string interrupted_by_;
    const TokenTexts* texts_;
    std::int64_t num_tokens_ = 0;
    std::int64_t num_undecided_ = 0;  // tokens that may turn out to be thinking
    std::int64_t num_between_ = 0;
    // bytes between the markers that cannot belong to the closing marker
    std::size_t num_bytes_ = 0;
    // begins of the tokens whose text may still belong to the closing marker
    std::deque<std::size_t> begins_{};
};

}  // namespace pitstop::http
