// The data door's calls about texts (encode, decode, render a chat), and the jobs for the other
// thread, including those of requests.
//
// The loop runs no call itself, because the cost of a chat template, or of the texts of single
// tokens, is unknown beforehand.
//
// Thread:  the loop thread only.
// Bounded: the calls by text_call_table.h, the jobs by text_worker.h.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/text_calls.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/chat_template.h"
#include "tokenizer_proc/outbox.h"
#include "tokenizer_proc/request_checks.h"
#include "tokenizer_proc/text_call_table.h"
#include "tokenizer_proc/text_worker.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Returns a client's name: its connection, then the names that it gives itself. The connection's
// identity is arbitrary bytes.
[[nodiscard]] std::vector<std::string> client_path(
    const std::string& peer, std::vector<std::string> names
);

class TextCalls {
  public:
    struct Texts {
        std::shared_ptr<const text::Tokenizer> tokenizer{};   // null: no text arrives
        std::shared_ptr<const ChatTemplate> chat_template{};  // null: no chats
        std::string tokenizer_config = "{}";                  // JSON; tokenizer_config.h
    };
    // REQUIRES: `outbox`, which gets the answers, outlives this object.
    TextCalls(Texts texts, Outbox& outbox) : texts_(std::move(texts)), outbox_(outbox) {}

    // Each function starts a call, or answers it. The caller must be told of errors.
    Result<> handle(
        const std::string& peer, messages::Tokenize message, const RequestChecks& checks
    );
    Result<> handle(const std::string& peer, messages::RenderChat message);
    Result<> handle(const std::string& peer, const messages::DescribeTokenizer& message);
    // Answers these open calls as aborted.
    void cancel(const std::string& peer, const std::vector<CallId>& calls);
    // Cancels all calls of a client that has left.
    void lose(const std::string& peer);
    // Answers every call with this error.
    void fail_all(const Error& error);

    // Starts the job of a request, under a new number. A short prompt is tokenized at once, unless
    // the tokenizer may need long for it; then returns the result.
    [[nodiscard]] JobId next_job() { return std::exchange(next_job_, next(next_job_)); }
    [[nodiscard]] std::optional<TextDone> start(TextJob job);
    // Cancels the job of a request that no longer needs it.
    void cancel_job(JobId job) { cancelled_.push_back(job); }

    // Answers the call of this job. Returns false, and keeps `done`, if no call has the job.
    bool finish(TextDone& done);

    // Returns the clients that have an open call, ascending.
    [[nodiscard]] std::vector<std::string> peers() const { return calls_.peers(); }
    // Return the jobs for the other thread, and the jobs that no client waits for, since the last
    // call.
    [[nodiscard]] std::vector<TextJob> take_jobs() { return std::exchange(jobs_, {}); }
    [[nodiscard]] std::vector<JobId> take_cancelled() { return std::exchange(cancelled_, {}); }

  private:
    Result<> start_call(const std::string& peer, CallId call, TextJob job);
    void answer(const TextCall& call, const Error& error);

    Texts texts_;
    Outbox& outbox_;
    TextCallTable calls_{};
    JobId next_job_{1};
    std::vector<TextJob> jobs_{};
    std::vector<JobId> cancelled_{};
};

}  // namespace pitstop::tokenizer
