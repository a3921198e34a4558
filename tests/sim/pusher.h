// A trainer that brings weights in a session of calls: it begins, sends buckets, commits. A trainer
// may be slow, or vanish between any two calls. Its calls may name another trainer's session or no
// session, replace a session, or declare false digests. Pure: the world carries its calls and the
// answers.
#pragma once

#include "base/time.h"
#include "messages/weights.h"
#include "tests/sim/random.h"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace pitstop::sim {

class Pusher {
  public:
    using Call = std::variant<
        messages::BeginUpdate,
        messages::UpdateBucket,
        messages::UpdateWeights,  // a bucket that names no session
        messages::CommitWeights,
        messages::DropStage>;
    // The facts that a trainer can know.
    struct Seen {
        std::string serving_digest{};
        std::string open_digest{};  // of the open session's content; empty: none is open
    };

    // `name`: the trainer's; its versions and buckets are named after it. A dependable trainer does
    // everything right, and does not give up. `adapter`: the adapter whose weights it brings;
    // empty: it brings the model's.
    Pusher(Random& random, std::string name, bool is_dependable, std::string adapter = "");

    // The trainer's next call, without a number; nothing: it has finished, or vanished.
    std::optional<Call> next(const Seen& seen);
    // The answer to that call.
    void heard(const messages::UpdateReply& reply);

    [[nodiscard]] Duration pause();  // before its next call
    [[nodiscard]] std::int64_t timeout_ms();
    [[nodiscard]] bool has_committed() const { return has_committed_; }
    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const std::string& adapter() const { return adapter_; }

  private:
    enum class At { kBegin, kBuckets, kEnd, kOver };

    [[nodiscard]] messages::BeginUpdate begin(const Seen& seen);
    void begin_adapter(messages::UpdateSpec& spec, const Seen& seen);
    [[nodiscard]] Call bucket();
    [[nodiscard]] bool names_session();
    [[nodiscard]] Call end(const Seen& seen);
    [[nodiscard]] std::uint64_t session();

    Random& random_;
    std::string name_;
    bool is_dependable_;
    std::string adapter_;
    At at_ = At::kBegin;
    std::uint64_t session_ = 0;
    std::int64_t num_buckets_left_ = 0;
    std::int64_t num_buckets_sent_ = 0;
    std::int64_t num_calls_left_ = 0;  // then it vanishes
    bool is_slow_ = false;
    bool is_unnamed_ = false;  // it names a session only where it must
    bool must_name_ = false;
    bool was_refused_ = false;
    bool has_committed_ = false;
};

// The first letter of the names of trainers that bring adapters, and of no others.
inline constexpr char kOfAdapters = 'l';
// Returns whether the bytes are an adapter's tensors: a rank tells these from the model's by name.
[[nodiscard]] bool are_of_adapter(const std::string& bytes);
// The bytes that a bucket brings.
[[nodiscard]] const std::string& name_of_bytes(const messages::WeightSource& source);

}  // namespace pitstop::sim
