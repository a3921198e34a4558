#include "tests/tp_worker/test_replica.h"

#include "base/log.h"
#include "tests/source_dir.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

std::string fresh_path() {
    static std::atomic<int> count{0};
    return (std::filesystem::temp_directory_path() /
            fmt::format("pitstop-test-{}-{}", ::getpid(), ++count))
        .string();
}

// Calls fn(rank) on a thread per rank.
template <class F>
void on_all_ranks(int tp, F fn) {
    std::vector<std::thread> threads;
    for (int rank = 1; rank < tp; ++rank) threads.emplace_back(fn, static_cast<std::size_t>(rank));
    fn(std::size_t{0});
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

Result<std::unique_ptr<TestReplica>> TestReplica::make(const ReplicaOptions& options) {
    auto replica = std::make_unique<TestReplica>();
    replica->ranks_.resize(static_cast<std::size_t>(options.tp));
    std::vector<std::optional<Error>> errors(replica->ranks_.size());
    const std::string path = fresh_path();
    // As main() does before it starts threads. spdlog is built without ThreadSanitizer, which
    // therefore does not see how spdlog guards the first use.
    spdlog::default_logger();
    on_all_ranks(options.tp, [&](std::size_t rank) {
        RankParts& parts = replica->ranks_[rank];
        parts.threads = std::make_unique<kernels::ThreadPool>(options.num_threads);
        if (options.tp == 1) {
            parts.communicator = make_solo_communicator();
        } else {
            auto attached = attach_shm_communicator({
                .path = path,
                .rank = static_cast<Rank>(rank),
                .size = options.tp,
                .attach_timeout = std::chrono::seconds(30),
                .peer_timeout = std::chrono::seconds(60),
            });
            if (!attached) {
                errors[rank] = attached.error();
                return;
            }
            parts.communicator = *std::move(attached);
        }
        if (options.wrap) parts.communicator = options.wrap(std::move(parts.communicator));
        auto engine = Engine::load(options.engine, *parts.threads, *parts.communicator);
        if (engine) {
            parts.engine = *std::move(engine);
        } else {
            errors[rank] = engine.error();
        }
    });
    for (const std::optional<Error>& error : errors) {
        if (error) return *error;
    }
    return replica;
}

messages::StepResult TestReplica::run(messages::StepPlan plan) {
    plan.step = static_cast<StepId>(next_step_++);
    plan.epoch = root().epoch();
    EXPECT_EQ(messages::invalid(plan).value_or(""), "");
    messages::StepResult result;
    on_all_ranks(static_cast<int>(ranks_.size()), [&](std::size_t rank) {
        Engine& engine = *ranks_[rank].engine;
        Result<messages::StepResult> mine = engine.run(plan);
        CHECK(mine.has_value());
        while (engine.wants_graph())
            CHECK(engine.make_graph().has_value());  // as an idle rank does
        if (rank == 0) result = *std::move(mine);
    });
    return result;
}

std::vector<float> TestReplica::read_logits(std::vector<std::int32_t> token_rows) {
    std::vector<float> logits;
    on_all_ranks(static_cast<int>(ranks_.size()), [&](std::size_t rank) {
        Result<std::vector<float>> mine = ranks_[rank].engine->read_logits(token_rows);
        CHECK(mine.has_value());
        if (rank == 0) logits = *std::move(mine);
    });
    return logits;
}

messages::SamplingParams greedy() {
    messages::SamplingParams params;
    params.temperature = 0;
    return params;
}

void add_row(
    TestRequest* request,
    std::int64_t num_new,
    messages::StepPlan* plan,
    const std::vector<TokenId>& drafts
) {
    if (!request->is_set_up) {
        messages::RequestSetup setup;
        setup.slot = request->slot;
        setup.prompt_len = request->prompt_len;
        setup.sampling = request->sampling;
        setup.logprobs = request->logprobs;
        setup.stop_ids = request->stop_ids;
        setup.history = request->tokens;
        plan->setups.push_back(setup);
        request->is_set_up = true;
    }
    messages::PlanRow row;
    row.slot = request->slot;
    row.begin = request->num_done;
    row.num_new = num_new;
    row.num_pages = static_cast<std::int64_t>(request->pages.size());
    const std::int64_t end = row.begin + num_new;
    const auto len = static_cast<std::int64_t>(request->tokens.size());
    if (end == len) row.output_index = len - request->prompt_len;
    for (std::int64_t i = row.begin; i < end; ++i) {
        plan->tokens.values.push_back(request->tokens[static_cast<std::size_t>(i)]);
    }
    for (const PageId page : request->pages) plan->pages.values.push_back(page);
    // Prompt logprobs: position i scores token i + 1. The prompt's last position has no next token
    // yet, but scored positions must be a row's last. So it gets any target, and its score is
    // dropped.
    const std::optional<std::int64_t> start = request->logprobs.prompt_start;
    const std::int64_t first =
        std::max(row.begin, std::max<std::int64_t>(start.value_or(0) - 1, 0));
    if (start && first < end && end <= request->prompt_len) {
        row.num_scored = end - first;
        for (std::int64_t i = first; i < end; ++i) {
            const bool has_target = i + 1 < request->prompt_len;
            plan->targets.values.push_back(
                has_target ? request->tokens[static_cast<std::size_t>(i + 1)] : TokenId{0}
            );
            request->pending_scores.push_back(has_target ? i : -1);
        }
    }
    if (request->wants_routes) row.num_routed = num_new;
    row.adapter = request->adapter;
    for (std::int64_t i = row.begin; i < end && request->brought.contains(i); ++i) {
        const std::vector<std::uint8_t>& rows = request->brought[i];
        plan->routes.values.insert(plan->routes.values.end(), rows.begin(), rows.end());
        ++row.num_brought;
    }
    request->drafts = drafts;
    if (!drafts.empty()) {
        plan->tokens.values.insert(plan->tokens.values.end(), drafts.begin(), drafts.end());
        row.num_drafted = std::ssize(drafts);
        row.num_new += std::ssize(drafts);
        if (request->wants_routes) row.num_routed += std::ssize(drafts);
    }
    plan->rows.push_back(row);
    request->num_done = end;
}

namespace {

// Reads the numbers of each entry in turn, from arrays in entry order.
class NumbersReader {
  public:
    NumbersReader(
        const std::vector<float>& logprobs,
        const std::vector<std::int32_t>& ranks,
        const std::vector<TokenId>& top_ids,
        const std::vector<float>& top_logprobs,
        const std::vector<float>& ids_logprobs
    )
        : logprobs_(logprobs),
          ranks_(ranks),
          top_ids_(top_ids),
          top_logprobs_(top_logprobs),
          ids_logprobs_(ids_logprobs) {}

    TestRequest::Numbers next(const messages::LogprobOptions& options) {
        TestRequest::Numbers numbers;
        numbers.logprob = logprobs_.at(entry_);
        numbers.rank = ranks_.at(entry_++);
        for (std::int64_t k = 0; k < options.top; ++k, ++top_) {
            numbers.top_ids.push_back(top_ids_.at(top_));
            numbers.top_logprobs.push_back(top_logprobs_.at(top_));
        }
        for (std::size_t k = 0; k < options.ids.size(); ++k) {
            numbers.ids_logprobs.push_back(ids_logprobs_.at(ids_++));
        }
        return numbers;
    }
    [[nodiscard]] bool is_used_up() const {
        return entry_ == logprobs_.size() && entry_ == ranks_.size() && top_ == top_ids_.size() &&
               top_ == top_logprobs_.size() && ids_ == ids_logprobs_.size();
    }

  private:
    const std::vector<float>& logprobs_;
    const std::vector<std::int32_t>& ranks_;
    const std::vector<TokenId>& top_ids_;
    const std::vector<float>& top_logprobs_;
    const std::vector<float>& ids_logprobs_;
    std::size_t entry_ = 0;
    std::size_t top_ = 0;
    std::size_t ids_ = 0;
};

}  // namespace

void run_step(
    TestReplica* replica, messages::StepPlan plan, const std::vector<TestRequest*>& requests
) {
    const std::vector<messages::PlanRow> rows = plan.rows;
    const messages::StepResult result = replica->run(std::move(plan));
    NumbersReader sampled(
        result.logprobs.values,
        result.ranks.values,
        result.top_ids.values,
        result.top_logprobs.values,
        result.ids_logprobs.values
    );
    NumbersReader scored(
        result.scores.logprobs.values,
        result.scores.ranks.values,
        result.scores.top_ids.values,
        result.scores.top_logprobs.values,
        result.scores.ids_logprobs.values
    );
    std::size_t entry = 0;
    auto route = result.routes.values.begin();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        TestRequest& request = *requests[i];
        for (std::int64_t at = rows[i].num_new - rows[i].num_routed; at < rows[i].num_new; ++at) {
            const auto begin = route;
            route += replica->root().routes()->row_bytes();
            request.routes[rows[i].begin + at].assign(begin, route);
        }
        for (const std::int64_t position : std::exchange(request.pending_scores, {})) {
            TestRequest::Numbers numbers = scored.next(request.logprobs);
            if (position >= 0) request.scores[position] = std::move(numbers);
        }
        bool counts = true;
        for (std::int64_t k = 0; k < rows[i].num_sampled(); ++k) {
            const TokenId token = result.sampled.values.at(entry++);
            TestRequest::Numbers numbers = sampled.next(request.logprobs);
            if (!counts) continue;
            request.tokens.push_back(token);
            request.outputs.push_back(std::move(numbers));
            request.num_done += k > 0 ? 1 : 0;
            counts = k < std::ssize(request.drafts) &&
                     request.drafts[static_cast<std::size_t>(k)] == token;
        }
    }
    EXPECT_TRUE(sampled.is_used_up() && scored.is_used_up());
    EXPECT_TRUE(route == result.routes.values.end());
}

void retract(TestRequest* request) {
    request->num_done = 0;
    request->pages.clear();
    request->is_set_up = false;
}

std::vector<TokenId> generate(
    TestReplica* replica,
    const std::vector<TokenId>& prompt,
    std::int64_t num_tokens,
    std::optional<messages::AdapterId> adapter
) {
    TestRequest request;
    request.adapter = adapter;
    request.tokens = prompt;
    request.prompt_len = static_cast<std::int64_t>(prompt.size());
    request.sampling = greedy();
    const std::int64_t page_size = replica->root().describe().page_size;
    const std::int64_t num_pages = (request.prompt_len + num_tokens + page_size - 1) / page_size;
    for (std::int64_t i = 0; i < num_pages; ++i) request.pages.push_back(static_cast<PageId>(i));
    for (std::int64_t i = 0; i < num_tokens; ++i) {
        messages::StepPlan plan;
        const auto len = static_cast<std::int64_t>(request.tokens.size());
        add_row(&request, len - request.num_done, &plan);
        run_step(replica, std::move(plan), {&request});
    }
    return {request.tokens.begin() + request.prompt_len, request.tokens.end()};
}

std::string model_dir(const std::string& name) { return source_dir() + "/launch/models/" + name; }

}  // namespace pitstop::tp_worker
