// The order in which requests are admitted, seen from outside a scheduler: from the messages to it
// and its plans. Another client overtakes a request, with fair scheduling, at most once per earlier
// request of the same client, and once more.
//
// A request that waits for a prefix that another computes, or for older conversations, keeps its
// turn. Meanwhile others overtake it, and also the later requests of its client. So no request
// counts while it, or an earlier one of its client, belongs to a conversation or may share a
// prefix, which requires an equal first token.
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
    // Whether others may be served in its client's turn.
    [[nodiscard]] bool may_be_passed_over(RequestKey key) const;

    Oracle& oracle_;
    std::map<RequestKey, Waiting> waiting_{};
    std::map<RequestKey, TokenId> first_tokens_{};  // of every open request
};

}  // namespace pitstop::sim
