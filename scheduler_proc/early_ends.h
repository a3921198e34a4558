// Keeps the ends that overtook the request they end.
//
// Control and requests travel on different sockets, so an abort may be here first. Keys ascend: one
// that is larger than every request's so far is still to come, and one that is smaller was here.
//
// Thread:  the loop thread only.
// Bounded: kEarlyEndsMax; over it the end of the smallest key, the longest overdue, is forgotten.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"

#include <map>
#include <optional>
#include <string>

namespace pitstop::scheduler {

inline constexpr std::size_t kEarlyEndsMax = 65536;
inline constexpr std::size_t kEndMessageBytesMax = 1024;

struct EarlyEnd {
    messages::EndCause cause = messages::EndCause::kAbort;
    std::string message{};
};

class EarlyEnds {
  public:
    void add(RequestKey key, EarlyEnd end) {
        ends_.insert_or_assign(key, std::move(end));
        if (ends_.size() > kEarlyEndsMax) ends_.erase(ends_.begin());
    }

    // Takes out the end of request `key`, which has just arrived, if there is one. Ends of smaller
    // keys are forgotten: those requests never come.
    std::optional<EarlyEnd> take(RequestKey key) {
        ends_.erase(ends_.begin(), ends_.lower_bound(key));
        const auto found = ends_.find(key);
        if (found == ends_.end()) return std::nullopt;
        EarlyEnd end = std::move(found->second);
        ends_.erase(found);
        return end;
    }

    [[nodiscard]] std::size_t size() const { return ends_.size(); }

  private:
    std::map<RequestKey, EarlyEnd> ends_{};
};

}  // namespace pitstop::scheduler
