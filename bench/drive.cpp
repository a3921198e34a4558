#include "bench/drive.h"

#include "base/check.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace pitstop::bench {
namespace {

std::int64_t ns_between(TimePoint begin, TimePoint end) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
}

// Counts open requests; the sender waits on it.
class OpenCount {
  public:
    void add() {
        const std::lock_guard lock(mutex_);
        ++open_;
    }
    void remove() {
        const std::lock_guard lock(mutex_);
        --open_;
        changed_.notify_one();
    }
    void wait_below(std::int64_t limit) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return open_ < limit; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::int64_t open_ = 0;  // guarded by mutex_
};

// The notes of one client, written only by its thread.
struct Notes {
    std::vector<ChunkEvent> chunks{};
};

void note_finish(
    RequestRecord& record, const messages::OutputChunk& last, std::int64_t planned_len
) {
    if (last.counts) {
        record.prompt_tokens = last.counts->prompt_tokens;
        record.cached_tokens = last.counts->cached_tokens;
    }
    const messages::Finish& finish = *last.finish;
    if (finish.reason == messages::FinishReason::kError ||
        finish.reason == messages::FinishReason::kAbort) {
        record.error = fmt::format("{} {}", finish.verdict.code_name(), finish.verdict.message);
        return;
    }
    const bool is_short =
        finish.reason == messages::FinishReason::kLength && record.output_tokens < planned_len;
    if (is_short || record.output_tokens > planned_len) {
        record.error = fmt::format("{} tokens of {}", record.output_tokens, planned_len);
    }
}

}  // namespace

DriveResult drive(const DriveArgs& args) {
    const std::vector<PlannedRequest>& planned = args.workload->requests;
    CHECK(!args.clients.empty());
    DriveResult result{.requests = std::vector<RequestRecord>(planned.size())};
    std::vector<Notes> notes(args.clients.size());
    for (Notes& of_client : notes) {
        const auto tokens = static_cast<std::size_t>(args.workload->output_tokens);
        of_client.chunks.reserve(tokens / args.clients.size() + planned.size() + 1);
    }
    OpenCount open;
    const std::int64_t limit = args.concurrency_max > 0 ? args.concurrency_max : kRequestsMax + 1;

    result.begin = Clock::now();
    for (std::size_t i = 0; i < planned.size(); ++i) {
        std::this_thread::sleep_until(result.begin + planned[i].arrival);
        open.wait_below(limit);
        RequestRecord& record = result.requests[i];
        // With a limit, a request is due when an open one ends (a closed loop).
        const TimePoint due =
            args.concurrency_max > 0 ? Clock::now() : result.begin + planned[i].arrival;
        record.due_ns = ns_between(result.begin, due);
        messages::Generate request = args.pattern;
        request.input_ids = planned[i].prompt;
        request.sampling.max_new_tokens = planned[i].output_len;
        const std::size_t client = i % args.clients.size();
        open.add();
        args.clients[client]->generate(
            std::move(request),
            [&, i, client](const messages::OutputChunk& chunk) {
                const std::int64_t at_ns = ns_between(result.begin, Clock::now());
                RequestRecord& mine = result.requests[i];
                const auto tokens = static_cast<std::uint32_t>(chunk.tokens.size());
                mine.output_tokens += tokens;
                if (tokens > 0) {
                    notes[client].chunks.push_back({at_ns, static_cast<std::uint32_t>(i), tokens});
                }
                if (!chunk.finish) return;
                mine.end_ns = at_ns;
                note_finish(mine, chunk, planned[i].output_len);
                open.remove();  // after this, drive() may return and destroy its objects
            },
            args.request_timeout
        );
    }
    open.wait_below(1);

    for (const Notes& of_client : notes) {
        result.chunks.insert(result.chunks.end(), of_client.chunks.begin(), of_client.chunks.end());
    }
    std::stable_sort(
        result.chunks.begin(),
        result.chunks.end(),
        [](const ChunkEvent& a, const ChunkEvent& b) { return a.at_ns < b.at_ns; }
    );
    return result;
}

}  // namespace pitstop::bench
