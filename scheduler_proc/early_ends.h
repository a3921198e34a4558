// Ends (aborts) that arrived before the requests that they end.
//
// Control and requests use different sockets, so an abort may arrive before its request. Keys
// ascend: a request whose key is above all keys seen so far has not arrived yet; all others have
// arrived.
//
// Thread:  the loop thread only.
// Bounded: kEarlyEndsMax; when full, the end with the smallest key, which has waited longest, is
//          forgotten.
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

    // Removes and returns the end for request `key`, which has just arrived, or nothing. Ends for
    // smaller keys are forgotten: their requests will never arrive.
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
