// Turns the schedulers' token batches into text batches. Requests are known by their keys, which
// are unique over all replicas. Nothing here depends on scheduling.
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: an entry per open request of all schedulers.
#pragma once

#include "detokenizer_proc/request_text.h"
#include "messages/generation.h"
#include "text/tokenizer.h"

#include <memory>
#include <unordered_map>

namespace pitstop::detokenizer {

class Detokenizer {
  public:
    explicit Detokenizer(std::shared_ptr<const text::Tokenizer> tokenizer)
        : tokenizer_(std::move(tokenizer)) {}

    // Returns the chunks in the order of the batch. A chunk of a request that never started becomes
    // an error, so that its client gets an answer even if a bug lost the start.
    [[nodiscard]] messages::TextBatch turn(messages::TokenBatch batch);

    [[nodiscard]] std::size_t num_open() const { return requests_.size(); }

  private:
    void start(messages::RequestStart start, messages::TextBatch& out);

    std::shared_ptr<const text::Tokenizer> tokenizer_;
    std::unordered_map<RequestKey, RequestText> requests_{};
};

}  // namespace pitstop::detokenizer
