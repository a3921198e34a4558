// Says which client keys may open which tcp door: the answers to what ZeroMQ asks during a CURVE
// handshake (ZAP, rfc.zeromq.org/spec/27). A domain is a door.
//
// Owns:    the socket at inproc://zeromq.zap.01, one per context. Make it before the doors.
// Thread:  one, the loop's.
// Bounded: kQuestionsPerTurnMax per turn; a handshake that is not answered in time ends by itself.
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

    // Answers what is there. Whoever asks something else than ZAP is refused.
    void answer_all();

    // Tells whether a client that came in may still be in.
    [[nodiscard]] bool is_allowed(TimePoint now, std::string_view domain, std::string_view key);
    // Counts the keys that were not let in at this door.
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
