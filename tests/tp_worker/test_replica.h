// A replica for tests: real engines, one thread per rank, joined by the real communicator.
#pragma once

#include "tp_worker/model/engine.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

struct ReplicaOptions {
    EngineOptions engine{};
    int tp = 1;
    int num_threads = 1;  // of each rank's ops
    // If set: wraps each rank's communicator.
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> wrap{};
};

class TestReplica {
  public:
    static Result<std::unique_ptr<TestReplica>> make(const ReplicaOptions& options);

    // Runs the plan on every rank; rank 0's result. The step and epoch are filled in.
    messages::StepResult run(messages::StepPlan plan);
    // Logits of tokens of the last step, rank 0's.
    std::vector<float> read_logits(std::vector<std::int32_t> token_rows);

    [[nodiscard]] Engine& root() { return *ranks_.front().engine; }
    [[nodiscard]] Engine& engine(int rank) {
        return *ranks_[static_cast<std::size_t>(rank)].engine;
    }
    [[nodiscard]] std::int64_t vocab_len() const {
        return ranks_.front().engine->config().vocab_len;
    }

  private:
    struct RankParts {
        std::unique_ptr<Communicator> communicator{};
        std::unique_ptr<kernels::ThreadPool> threads{};
        std::unique_ptr<Engine> engine{};
    };
    std::vector<RankParts> ranks_{};
    std::int64_t next_step_ = 1;
};

// A request from a scheduler's view: its tokens and its pages.
struct TestRequest {
    SlotId slot{};
    std::vector<TokenId> tokens{};  // prompt, then output
    std::int64_t prompt_len = 0;
    std::int64_t num_done = 0;  // tokens with KV
    std::vector<PageId> pages{};
    messages::SamplingParams sampling{};
    messages::LogprobOptions logprobs{};
    std::vector<TokenId> stop_ids{};
    bool wants_routes = false;
    std::optional<messages::AdapterId> adapter{};
    std::map<std::int64_t, std::vector<std::uint8_t>> brought{};  // routes by position, from 0 on
    bool is_set_up = false;

    // The results of each output token, and of each scored prompt position (its next token).
    struct Numbers {
        float logprob = 0.f;
        std::int32_t rank = 0;
        std::vector<TokenId> top_ids{};
        std::vector<float> top_logprobs{};
        std::vector<float> ids_logprobs{};
        friend bool operator==(const Numbers&, const Numbers&) = default;
    };
    std::vector<Numbers> outputs{};
    std::map<std::int64_t, Numbers> scores{};
    std::map<std::int64_t, std::vector<std::uint8_t>> routes{};  // by position
    std::vector<std::int64_t>
        pending_scores{};           // positions of the row in flight; -1: to be dropped
    std::vector<TokenId> drafts{};  // of the row in flight
};

[[nodiscard]] messages::SamplingParams greedy();

// Appends a row for the next `num_new` tokens, and the request's setup if it is the first row. If
// these are the last tokens, the row samples, and may have drafts after them. REQUIRES: the request
// has pages for all.
void add_row(
    TestRequest* request,
    std::int64_t num_new,
    messages::StepPlan* plan,
    const std::vector<TokenId>& drafts = {}
);

// Runs a plan made by add_row of these requests, in this order, and distributes the results.
// Outputs after a wrong draft are dropped.
void run_step(
    TestReplica* replica, messages::StepPlan plan, const std::vector<TestRequest*>& requests
);

// Forgets the KV and the slot's state, as a retraction does; the tokens stay.
void retract(TestRequest* request);

// The prompt in one chunk, then one token at a time.
std::vector<TokenId> generate(
    TestReplica* replica,
    const std::vector<TokenId>& prompt,
    std::int64_t num_tokens,
    std::optional<messages::AdapterId> adapter = std::nullopt
);

// In launch/models: "stories", "bard".
[[nodiscard]] std::string model_dir(const std::string& name);

}  // namespace pitstop::tp_worker
