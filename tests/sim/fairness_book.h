// The order in which a scheduler admits requests, derived from its plans and from the messages to
// it. With fair scheduling, another client overtakes a request at most N + 1 times, where N is the
// number of earlier requests of the same client.
//
// A request that waits for a prefix that another request computes, or for older conversations,
// keeps its turn. Meanwhile other clients overtake this request and the later requests of its
// client. So a request is not counted while an earlier request of its client, or the request
// itself, belongs to a conversation or may share a prefix. Sharing requires an equal first token.
#pragma once

#include "messages/generation.h"
#include "messages/steps.h"
#include "tests/sim/oracle.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pitstop::sim {

class FairnessBook {
  public:
    explicit FairnessBook(Oracle& oracle) : oracle_(oracle) {}

    // A scheduler has queued the request.
    void arrived(const messages::TokenizedRequest& request);
    // A plan has rows of these requests. Those that have run before are ignored.
    void admitted(const messages::StepPlan& plan);
    // Forgets ended requests. To be called before a turn's plans are judged.
    void retain(const std::function<bool(RequestKey)>& is_open);

  private:
    struct Waiting {
        std::vector<std::string> path{};  // the client's names
        std::string client{};             // the first of them
        std::int64_t priority = 0;
        bool has_conversation = false;
        std::int64_t num_before = 0;                      // requests of its own client and priority
        std::map<std::string, std::int64_t> overtaken{};  // by client
    };
    [[nodiscard]] bool may_share(RequestKey key) const;
    // Returns whether other clients may be served in the turn of the request's client.
    [[nodiscard]] bool may_be_passed_over(RequestKey key) const;

    Oracle& oracle_;
    std::map<RequestKey, Waiting> waiting_{};
    std::map<RequestKey, TokenId> first_tokens_{};  // of every open request
};

}  // namespace pitstop::sim
