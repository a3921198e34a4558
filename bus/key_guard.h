// Decides which client keys may open which tcp door: answers ZeroMQ's questions during a CURVE
// handshake (ZAP, rfc.zeromq.org/spec/27). A ZAP domain is a door.
//
// Owns:    the socket at inproc://zeromq.zap.01, one per context. Make it before the doors.
// Thread:  one, the loop's.
// Bounded: kQuestionsPerTurnMax per turn; a handshake without an answer in time ends by itself.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "bus/curve_keys.h"
#include "bus/poller.h"

#include <zmq.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bus {

class KeyGuard {
  public:
    static constexpr int kQuestionsPerTurnMax = 256;

    static Result<KeyGuard> open(zmq::context_t& context);

    void allow(std::string domain, AllowedKeys keys);
    void add_to(Poller& poller) { poller.add(socket_); }

    // Answers all waiting questions. Questions other than ZAP's are refused.
    void answer_all();

    // Returns whether a client that was admitted may stay.
    [[nodiscard]] bool is_allowed(TimePoint now, std::string_view domain, std::string_view key);
    // The number of keys refused at this door.
    [[nodiscard]] std::int64_t num_refused(std::string_view domain) const;

  private:
    struct Door {
        AllowedKeys keys;
        std::int64_t num_refused = 0;
    };
    explicit KeyGuard(zmq::socket_t socket) : socket_(std::move(socket)) {}
    void answer(const std::vector<std::string>& question);

    zmq::socket_t socket_;
    std::map<std::string, Door, std::less<>> doors_{};
};

}  // namespace pitstop::bus
