#include "http_proc/generation/thinking_count.h"

#include <string_view>
#include <utility>

namespace pitstop::http {

void ThinkingCount::add(std::span<const TokenId> ids) {
    for (const TokenId id : ids) {
        if (parser_.is_in_answer()) return;
        add_one(id);
    }
}

void ThinkingCount::add_one(TokenId id) {
    const bool had_thought = parser_.has_thought();
    const std::string_view text = texts_->bytes_of(id);
    begins_.push_back(num_bytes_ + parser_.num_held());
    const ThinkingParser::Part part = parser_.append(text);
    if (!interrupted_by_.empty() && part.answer.starts_with(interrupted_by_))
        return;  // the token belongs to the call
    num_undecided_ += 1;
    if (!parser_.has_thought()) return;
    num_tokens_ += std::exchange(num_undecided_, 0);
    if (!had_thought)
        leave_out(begins_.back() + text.size() - part.thinking.size() - parser_.num_held());
    num_bytes_ += part.thinking.size();
    while (!begins_.empty() && begins_.front() < num_bytes_) {
        begins_.pop_front();
        ++num_between_;
    }
}

// Discounts the opening marker, and the white space before it, from the first tokens.
void ThinkingCount::leave_out(std::size_t num_bytes) {
    while (begins_.size() > 1 && begins_[1] <= num_bytes) begins_.pop_front();
    for (std::size_t& begin : begins_) begin = begin > num_bytes ? begin - num_bytes : 0;
}

}  // namespace pitstop::http
