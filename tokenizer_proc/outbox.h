// Orders what goes out of the doors. One message of output per client and flush; a client that does
// not read costs only itself: what waits for it is joined per request, up to a bound.
//
// It is pure: flush() gives what is to be sent, and take_back() takes what could not be.
// Thread:  the loop thread only.
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
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Holds a message for a client.
struct ToClient {
    enum class Kind { kAnswer, kOutput, kProbe };
    messages::Door door{};
    std::string peer{};
    messages::Frames frames{};
    Kind kind = Kind::kAnswer;
};
// Holds one that could not be sent, and why: kFull or kGone. What came after it for the same client
// was not tried, and comes back behind it.
struct UnsentToClient {
    ToClient message{};
    bus::Sent why = bus::Sent::kFull;
};

class Outbox {
  public:
    static constexpr std::size_t kMessageBytesMax = std::size_t{8} << 20;
    static constexpr std::size_t kBacklogBytesMax = std::size_t{16} << 20;
    static constexpr std::size_t kRepliesBytesMax = std::size_t{1} << 20;
    static constexpr std::size_t kTotalBytesMax = std::size_t{256} << 20;

    enum class LostHow { kGone, kSlow };
    struct Lost {
        std::string peer{};  // a client of the data door
        LostHow how{};
    };

    // Adds an answer. One to a client that is gone, or over its bound, is dropped and counted.
    void reply(messages::Door door, const std::string& peer, messages::Frames frames);
    // Adds output of one request.
    void add(const std::string& peer, messages::OutputChunk chunk);

    // Appends what is to be sent, in order: of each client its answers and one message of output.
    // Call it once a turn, when the message of output before it has been sent, or came back.
    void flush(TimePoint now, std::vector<ToClient>& out);
    // Appends answers alone, behind all that.
    void flush_answers(std::vector<ToClient>& out);
    // Takes back what of the last flush could not be sent, in its order.
    void take_back(std::vector<UnsentToClient> unsent);
    // Returns whether output stands behind the message that was flushed: then flush again at once,
    // unless that message comes back.
    [[nodiscard]] bool has_more() const;
    // Returns whether the client's output waits, and so much that its requests were ended; it is
    // slow until it has read all of it.
    [[nodiscard]] bool is_slow(const std::string& peer) const;

    // Returns the clients whose requests must be ended, found since the last call.
    [[nodiscard]] std::vector<Lost> take_lost() { return std::exchange(lost_, {}); }

    // Every request with output in the backlog, and those in `open`, gets this error in place of
    // the output: it is told at least that, when it reads.
    void fail(const std::string& peer, const std::vector<std::string>& open, const Error& error);

    // Asks whether the clients with open requests that have been sent nothing for a while are
    // there: they get an empty `outputs`.
    void probe(const std::vector<std::string>& peers, TimePoint now, std::vector<ToClient>& out);
    static constexpr auto kProbeAfter = std::chrono::seconds(2);

    [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }

  private:
    using Address = std::pair<messages::Door, std::string>;
    struct Waiting {
        std::deque<messages::Frames> replies{};
        std::size_t replies_bytes = 0;
        // These are about the message of output that was flushed last: whose output is in it, and
        // the message itself, if the client's queue was full.
        std::vector<std::string> head_rids{};
        std::optional<messages::Frames> head{};
        // These came since, joined.
        std::vector<messages::OutputChunk> chunks{};           // in the order of first arrival
        std::unordered_map<std::string, std::size_t> index{};  // rid -> its latest in chunks
        std::size_t chunks_bytes = 0;
        bool is_full = false;  // something of the last flush came back
        bool is_slow = false;

        [[nodiscard]] bool is_empty() const { return replies.empty() && !head && chunks.empty(); }
    };
    void keep_answer(Waiting& waiting, messages::Frames frames);
    messages::Frames take_head(Waiting& waiting);
    void forget_chunks(Waiting& waiting);
    void find_slow(const std::string& peer, Waiting& waiting);

    std::map<Address, Waiting> waiting_{};  // those for whom something waits, or was just flushed
    std::map<std::string, TimePoint> last_sent_{};  // data-door clients with open requests
    std::vector<Lost> lost_{};
    std::size_t total_bytes_ = 0;  // all chunks together
    std::int64_t num_dropped_ = 0;
};

}  // namespace pitstop::tokenizer
