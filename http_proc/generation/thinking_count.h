// Counts the tokens of a turn's thinking: with its markers, and those between them, which a budget
// limits.
//
// Bounded: holds a number for each token that may belong to a marker.
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
    // REQUIRES: the texts outlive this.
    ThinkingCount(
        const ThinkingFormat& format, ThinkingParser::Start start, const TokenTexts* texts
    )
        : parser_(format, start), interrupted_by_(format.interrupted_by), texts_(texts) {}

    void add(std::span<const TokenId> ids);
    // The tokens of thinking with its markers. A token that ends thinking and begins the answer
    // counts.
    [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
    // The number of tokens that have a part of the text between the markers.
    [[nodiscard]] std::int64_t num_between() const { return num_between_; }

  private:
    void add_one(TokenId id);
    void leave_out(std::size_t num_bytes);

    ThinkingParser parser_;
    std::string interrupted_by_;
    const TokenTexts* texts_;
    std::int64_t num_tokens_ = 0;
    std::int64_t num_undecided_ = 0;  // tokens while it is undecided whether this is thinking
    std::int64_t num_between_ = 0;
    // bytes between the markers that are known not to belong to the closing marker
    std::size_t num_bytes_ = 0;
    // the places of tokens between the markers that may still belong to the closing marker
    std::deque<std::size_t> begins_{};
};

}  // namespace pitstop::http
