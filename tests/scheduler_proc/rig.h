// A scheduler and its fake workers with a virtual clock, which tests drive. After every turn the
// scheduler's invariants are checked, and every chunk is checked against the earlier ones.
#pragma once

#include "tests/scheduler_proc/fake_workers.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// All chunks of a request, joined.
struct Received {
    std::vector<TokenId> tokens{};
    std::vector<float> logprobs{};
    std::vector<std::int32_t> ranks{};
    std::vector<TokenId> top_ids{};
    std::vector<float> top_logprobs{};
    std::vector<float> ids_logprobs{};
    std::vector<messages::Span> spans{};
    std::optional<messages::PromptLogprobs> prompt{};
    std::optional<messages::Routes> routes{};
    std::optional<messages::Supports> supports{};
    std::optional<messages::RequestCounts> first_counts{};
    std::optional<messages::RequestCounts> counts{};
    std::optional<messages::AdapterVersion> adapter{};
    std::optional<messages::Finish> finish{};
    std::int64_t num_starts = 0;
    std::int64_t num_chunks = 0;
    std::int64_t num_drops = 0;
};

struct Ask {
    std::vector<TokenId> prompt{};
    std::optional<std::int64_t> max_new_tokens = 8;
    messages::SamplingParams sampling{};  // with the max_new_tokens above
    messages::LogprobOptions logprobs{};
    std::optional<std::int64_t> routes_start{};
    std::vector<std::uint8_t> brought{};  // routes of its first tokens
    std::int64_t priority = 0;
    messages::KvTolerance kv_tolerance = messages::KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;
    std::vector<std::string> client{};
    std::string adapter{};
    std::vector<TokenId> draft_ids{};
    std::optional<std::string> draft_key{};
    std::optional<messages::ConversationId> conversation{};
};

class Rig {
  public:
    // The scheduler's tp and page size come from the model.
    explicit Rig(FakeModel model = {}, SchedulerConfig config = {});

    // Runs a turn with `in` at the current time; keeps its output.
    TurnOutput turn(TurnInput in = {});

    RequestKey send(const Ask& ask);  // queued for the next turn
    void control(Control message);    // queued for the next turn
    [[nodiscard]] messages::TokenizedRequest make(const Ask& ask);

    // The workers execute one message, then the scheduler takes a turn. False: there was no
    // message.
    bool step();
    // Turns and steps until nothing is left to do; at most `steps_max`.
    void run(int steps_max = 100000);

    [[nodiscard]] Received& of(RequestKey key) { return received_[key]; }
    [[nodiscard]] const std::map<RequestKey, Received>& all() const { return received_; }
    // The model's answer to this ask, computed without a scheduler.
    [[nodiscard]] Received expected(const Ask& ask) const;
    [[nodiscard]] static Received expected(const FakeModel& model, const Ask& ask);
    [[nodiscard]] static std::optional<messages::Routes> expected_routes(
        const FakeModel& model, std::span<const TokenId> tokens, std::optional<std::int64_t> start
    );

    // Removes and returns the messages of one type to the tokenizer.
    template <class Message>
    std::vector<Message> take() {
        std::vector<Message> found;
        std::erase_if(to_tokenizer, [&](ToTokenizer& message) {
            auto* wanted = std::get_if<Message>(&message);
            if (wanted == nullptr) return false;
            found.push_back(std::move(*wanted));
            return true;
        });
        return found;
    }
    [[nodiscard]] messages::ReplicaStatus status() const { return scheduler.status(now, CallId{}); }

    FakeWorkers workers;
    Scheduler scheduler;
    TimePoint now{};
    Duration tick = std::chrono::milliseconds(1);  // between turns
    std::vector<ToTokenizer> to_tokenizer{};

  private:
    void take_batch(const messages::TokenBatch& batch);

    TurnInput next_{};
    RequestKey last_key_{};
    std::map<RequestKey, Received> received_{};
};

// `num` tokens that start with token `first`; another `first` gives other tokens.
[[nodiscard]] std::vector<TokenId> prompt_of(std::int64_t num, std::int64_t first = 100);

}  // namespace pitstop::scheduler
