#include "bench/streams.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace pitstop::bench {

struct Streams::Notes {
    TimePoint begin{};
    mutable std::mutex mutex{};
    std::condition_variable changed{};
    // Guarded by `mutex`:
    std::vector<ChunkEvent> chunks{};
    std::vector<std::int64_t> tokens{};  // of each stream
    std::vector<messages::Finish> ends{};

    [[nodiscard]] std::int64_t fewest_tokens() const {
        return *std::min_element(tokens.begin(), tokens.end());
    }

    // Waits until every stream has `count` tokens, or one has ended.
    Result<> wait_tokens(std::int64_t count, std::chrono::milliseconds timeout) {
        std::unique_lock lock(mutex);
        const bool is_in_time = changed.wait_for(lock, timeout, [&] {
            return fewest_tokens() >= count || !ends.empty();
        });
        if (!ends.empty()) {
            return make_error(
                ErrorCode::kUnavailable,
                "a stream ended too early: {} {} {}",
                name_of(ends[0].reason),
                ends[0].verdict.code_name(),
                ends[0].verdict.message
            );
        }
        if (!is_in_time) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "the slowest stream has {} of {} tokens after {} ms",
                fewest_tokens(),
                count,
                timeout.count()
            );
        }
        return Ok{};
    }
};

messages::Generate random_request(
    Random& random, std::int64_t prompt_len, std::int64_t output_len, std::int64_t vocab
) {
    messages::Generate request;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = output_len;
    request.text_output = false;
    append_tokens(random, prompt_len, vocab, request.input_ids.emplace());
    return request;
}

Result<Streams> Streams::start(const Args& args) {
    const messages::HelloReply hello = args.client->hello();
    auto notes = std::make_shared<Notes>();
    notes->begin = Clock::now();
    notes->tokens.resize(static_cast<std::size_t>(args.count));
    std::vector<std::string> rids;
    Random random(args.seed);
    for (int i = 0; i < args.count; ++i) {
        rids.push_back(args.client->generate(
            random_request(random, args.prompt_len, args.output_len, hello.vocab_size),
            [notes, i](const messages::OutputChunk& chunk) {
                const auto at = std::chrono::nanoseconds(Clock::now() - notes->begin).count();
                const auto tokens = static_cast<std::uint32_t>(chunk.tokens.size());
                const std::lock_guard lock(notes->mutex);
                if (tokens > 0)
                    notes->chunks.push_back({at, static_cast<std::uint32_t>(i), tokens});
                notes->tokens[static_cast<std::size_t>(i)] += tokens;
                if (chunk.finish) notes->ends.push_back(*chunk.finish);
                notes->changed.notify_all();
            }
        ));
    }
    Streams streams(args.client, notes, std::move(rids));
    RETURN_IF_ERROR(notes->wait_tokens(1, args.first_token_timeout));
    return streams;
}

Streams::~Streams() {
    if (notes_ != nullptr) client_->cancel(rids_);
}

std::int64_t Streams::now_ns() const {
    return std::chrono::nanoseconds(Clock::now() - notes_->begin).count();
}

Result<> Streams::wait_tokens(std::int64_t tokens, std::chrono::milliseconds timeout) {
    std::int64_t most = 0;
    {
        const std::lock_guard lock(notes_->mutex);
        most = *std::max_element(notes_->tokens.begin(), notes_->tokens.end());
    }
    return notes_->wait_tokens(most + tokens, timeout);
}

Result<> Streams::stop() {
    constexpr std::chrono::seconds kTimeout{30};
    client_->cancel(rids_);
    std::unique_lock lock(notes_->mutex);
    const bool is_in_time = notes_->changed.wait_for(lock, kTimeout, [&] {
        return notes_->ends.size() == notes_->tokens.size();
    });
    if (!is_in_time) {
        return make_error(
            ErrorCode::kDeadlineExceeded,
            "{} of {} streams ended within {} s of their cancelling",
            notes_->ends.size(),
            notes_->tokens.size(),
            kTimeout.count()
        );
    }
    for (const messages::Finish& end : notes_->ends) {
        if (end.reason == messages::FinishReason::kAbort) continue;
        return make_error(
            ErrorCode::kUnavailable,
            "a stream ended by itself: {} {} {}",
            name_of(end.reason),
            end.verdict.code_name(),
            end.verdict.message
        );
    }
    return Ok{};
}

std::vector<ChunkEvent> Streams::chunks() const {
    const std::lock_guard lock(notes_->mutex);
    return notes_->chunks;
}

SplitGaps split_gaps(
    const std::vector<ChunkEvent>& chunks, const std::vector<TimeWindow>& windows
) {
    SplitGaps gaps;
    std::map<std::uint32_t, std::int64_t> last_ns;  // by request
    for (const ChunkEvent& chunk : chunks) {
        const auto [place, is_first] = last_ns.try_emplace(chunk.request, chunk.at_ns);
        if (is_first) continue;
        const std::int64_t before_ns = std::exchange(place->second, chunk.at_ns);
        const bool overlaps =
            std::any_of(windows.begin(), windows.end(), [&](const TimeWindow& window) {
                return before_ns < window.end_ns && chunk.at_ns > window.begin_ns;
            });
        const double gap_ms = static_cast<double>(chunk.at_ns - before_ns) * 1e-6;
        (overlaps ? gaps.inside_ms : gaps.outside_ms).push_back(gap_ms);
    }
    return gaps;
}

}  // namespace pitstop::bench
