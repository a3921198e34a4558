// What goes out of the doors. One message per client and flush; a client that does not read costs
// only itself: what waits for it is joined per request, up to a bound.
//
// Thread:  the loop thread only. Nothing here waits.
// Bounded: kBacklogBytesMax of output and kRepliesBytesMax of answers per client,
//          kTotalBytesMax in all; over it the client is slow, and says so in lost().
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "bus/socket.h"
#include "messages/calls.h"
#include "messages/generation.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class Outbox {
  public:
    using Send =
        std::function<bus::Sent(messages::Door, const std::string& peer, const messages::Frames&)>;

    static constexpr std::size_t kMessageBytesMax = std::size_t{8} << 20;
    static constexpr std::size_t kBacklogBytesMax = std::size_t{16} << 20;
    static constexpr std::size_t kRepliesBytesMax = std::size_t{1} << 20;
    static constexpr std::size_t kTotalBytesMax = std::size_t{256} << 20;

    enum class LostHow { kGone, kSlow };
    struct Lost {
        std::string peer{};  // of the data door
        LostHow how{};
    };

    explicit Outbox(Send send) : send_(std::move(send)) {}

    // An answer, sent now if that can be. One to a client that is gone, or over its bound, is
    // dropped and counted.
    void reply(messages::Door door, const std::string& peer, messages::Frames frames);
    // Output of one request, sent by the next flush.
    void add(const std::string& peer, messages::OutputChunk chunk);

    // Sends what waits, as far as the clients take it.
    void flush(TimePoint now);
    // Something still waits for a client: flush again soon.
    [[nodiscard]] bool has_backlog() const { return !waiting_.empty(); }
    // Its output waits, and so much that its requests were ended; until it has read all of it.
    [[nodiscard]] bool is_slow(const std::string& peer) const;

    // Clients whose requests must be ended, found since the last call.
    [[nodiscard]] std::vector<Lost> take_lost() { return std::exchange(lost_, {}); }

    // Every request with output in the backlog, and those in `open`, gets this error in place of
    // the output: it is told at least that, when it reads.
    void fail(const std::string& peer, const std::vector<std::string>& open, const Error& error);

    // Asks whether the clients with open requests that have been sent nothing for a while are
    // there: they get an empty `outputs`.
    void probe(const std::vector<std::string>& peers, TimePoint now);
    static constexpr auto kProbeAfter = std::chrono::seconds(2);

    [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }

  private:
    using Address = std::pair<messages::Door, std::string>;
    struct Waiting {
        std::deque<messages::Frames> replies{};
        std::size_t replies_bytes = 0;
        // The message that found the client's queue full, encoded once, and whose output is in it.
        std::optional<messages::Frames> head{};
        std::vector<std::string> head_rids{};
        // What came since, joined.
        std::vector<messages::OutputChunk> chunks{};           // in the order of first arrival
        std::unordered_map<std::string, std::size_t> index{};  // rid -> its latest in chunks
        std::size_t chunks_bytes = 0;
        bool is_slow = false;
    };
    // Whether everything went out, or the client is gone.
    bool send_all(const Address& address, Waiting& waiting, TimePoint now);
    bus::Sent send_replies(const Address& address, Waiting& waiting);
    bus::Sent send_chunks(const Address& address, Waiting& waiting, TimePoint now);
    void encode_head(Waiting& waiting);
    void forget_chunks(Waiting& waiting);
    void lose(const std::string& peer, LostHow how) { lost_.push_back({peer, how}); }

    Send send_;
    std::map<Address, Waiting> waiting_{};          // those for whom something waits
    std::map<std::string, TimePoint> last_sent_{};  // data-door clients with open requests
    std::vector<Lost> lost_{};
    std::size_t total_bytes_ = 0;  // of all chunks
    std::int64_t num_dropped_ = 0;
};

}  // namespace pitstop::tokenizer
