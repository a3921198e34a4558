// Notices if the tree sends no output, asks the tree why, and tells the reason to the answers that
// wait for output.
//
// Thread:  the server's loop, which calls beat() several times per second.
// Bounded: an entry per waiting answer; one question at a time.
#pragma once

#include "base/time.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace pitstop {
class Client;
}

namespace pitstop::http {

class Silence {
  public:
    // The time between two comments to a waiting answer, because proxies close idle connections.
    static constexpr std::chrono::seconds kTellAgain{10};

    using OnTold = std::function<void(const std::string& why)>;
    // Returns a number for remove(). Until remove(), `on_told` may be called; it may call remove()
    // itself.
    std::uint64_t add(OnTold on_told, TimePoint now);
    void remove(std::uint64_t number) { waiting_.erase(number); }
    void note_output(TimePoint now) { last_output_ = now; }

    void beat(Client& client, TimePoint now);

  private:
    struct Waiting {
        OnTold on_told{};
        TimePoint told_at{};  // at first: when the wait began
        bool was_told = false;
    };
    [[nodiscard]] bool is_due(const Waiting& waiting, TimePoint now) const;
    void tell(const std::string& why, TimePoint now);

    std::map<std::uint64_t, Waiting> waiting_{};
    std::uint64_t next_number_ = 1;
    TimePoint last_output_{};
    TimePoint asked_at_{};
    bool is_asking_ = false;
    // tells the tree's answer, which may come late, whether this object still exists
    std::shared_ptr<bool> is_there_ = std::make_shared<bool>(true);
};

}  // namespace pitstop::http
