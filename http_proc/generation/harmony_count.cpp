#include "http_proc/generation/harmony_count.h"

#include <utility>

namespace pitstop::http {

void HarmonyCount::add(std::span<const TokenId> ids) {
    using At = HarmonyParser::At;
    for (const TokenId id : ids) {
        const bool was_thinking = parser_.at() == At::kThinking;
        static_cast<void>(parser_.append(texts_->bytes_of(id)));
        const At now = parser_.at();
        if (was_thinking || now == At::kThinking) {
            num_tokens_ += 1 + std::exchange(num_undecided_, 0);
        } else if (now == At::kHeader) {
            ++num_undecided_;
        } else {
            num_undecided_ = 0;
        }
    }
}

}  // namespace pitstop::http
