// The messages that the doors send: per flush, each client gets one message of output. A client
// that does not read affects only itself: its waiting output is joined per request, up to a bound.
//
// Pure: flush() returns messages to send; requeue() takes back those that could not be sent.
// Thread:  the loop thread only.
// Bounded: kBacklogBytesMax of output and kRepliesBytesMax of answers per client; kTotalBytesMax in
//          all. A client over a bound is slow; take_lost() returns it.
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

// A message for a client.
struct ToClient {
    enum class Kind { kAnswer, kOutput, kProbe };
    messages::Door door{};
    std::string peer{};
    messages::Frames frames{};
    Kind kind = Kind::kAnswer;
};
// A message that could not be sent, with the reason: kFull or kGone. Later messages for the same
// client were not tried, and follow in the list.
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

    // Adds an answer. Drops and counts an answer to a client that has left or is over its
    // bound.
    void reply(messages::Door door, const std::string& peer, messages::Frames frames);
    // Adds output of one request.
    void add(const std::string& peer, messages::OutputChunk chunk);

    // Appends the messages to send, in order: for each client, its answers and one message of
    // output. Call once per turn, after the previous message of output was sent or taken back.
    void flush(TimePoint now, std::vector<ToClient>& out);
    // Appends only answers. Called after flush().
    void flush_answers(std::vector<ToClient>& out);
    // Takes back messages of the last flush that could not be sent, in order.
    void requeue(std::vector<UnsentToClient> unsent);
    // Returns whether more output waits after the flushed messages. If so, flush again at once,
    // unless a message could not be sent.
    [[nodiscard]] bool has_more() const;
    // Returns whether the client's requests were ended because too much of its output waits. The
    // client stays slow until it has read all of it.
    [[nodiscard]] bool is_slow(const std::string& peer) const;

    // Returns the clients whose requests must be ended; each once.
    [[nodiscard]] std::vector<Lost> take_lost() { return std::exchange(lost_, {}); }

    // Replaces the waiting output of all requests of this client, and of those in `open`, by this
    // error. The client gets the error when it reads.
    void fail(const std::string& peer, const std::vector<std::string>& open, const Error& error);

    // Probes clients that have open requests and were sent nothing for kProbeAfter: sends them an
    // empty `outputs`.
    void probe(const std::vector<std::string>& peers, TimePoint now, std::vector<ToClient>& out);
    static constexpr auto kProbeAfter = std::chrono::seconds(2);

    [[nodiscard]] std::int64_t num_dropped() const { return num_dropped_; }

  private:
    using Address = std::pair<messages::Door, std::string>;
    struct Waiting {
        std::deque<messages::Frames> replies{};
        std::size_t replies_bytes = 0;
        // The last flushed message of output: the requests whose output it has, and the message
        // itself if the client's queue was full.
        std::vector<std::string> head_rids{};
        std::optional<messages::Frames> head{};
        // Chunks added since the last flush; those of a request are joined.
        std::vector<messages::OutputChunk> chunks{};  // in the order of first arrival
        // rid -> its latest chunk in `chunks`
        std::unordered_map<std::string, std::size_t> index{};
        std::size_t chunks_bytes = 0;
        bool is_full = false;  // a message of the last flush could not be sent
        bool is_slow = false;

        [[nodiscard]] bool is_empty() const { return replies.empty() && !head && chunks.empty(); }
    };
    void keep_answer(Waiting& waiting, messages::Frames frames);
    messages::Frames take_head(Waiting& waiting);
    void forget_chunks(Waiting& waiting);
    void find_slow(const std::string& peer, Waiting& waiting);

    std::map<Address, Waiting> waiting_{};          // clients with messages that are not sent yet
    std::map<std::string, TimePoint> last_sent_{};  // data-door clients with open requests
    std::vector<Lost> lost_{};
    std::size_t total_bytes_ = 0;  // of all chunks
    std::int64_t num_dropped_ = 0;
};

}  // namespace pitstop::tokenizer
