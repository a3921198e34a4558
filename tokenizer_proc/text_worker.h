// Tokenizes texts and renders chats on a thread of its own, so that neither a prompt of megabytes
// nor a template delays other clients' output. Clients take turns (base/fair_queue.h): a job waits
// for the job in progress and for earlier jobs of its own client. For each of these, it also waits
// for at most one job of each other client. Short texts are tokenized by the loop itself, with
// run_job().
//
// Thread:  the loop thread owns the queue, which takes and returns values.
// Bounded: kQueueBytesMax of waiting text, kClientBytesMax of one client's. If the queue is full,
//          the newest job of the client with most text is dropped. A job ends within kJobCpuMax. A
//          cancelled job ends within 1 ms, or at the next stage of encoding.
#pragma once

#include "base/fair_queue.h"
#include "base/ids.h"
#include "base/interrupt.h"
#include "base/mutex.h"
#include "base/result.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/chat_template.h"
#include "tokenizer_proc/request_table.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pitstop::tokenizer {

// A chat that is rendered first; the resulting text is encoded.
struct ChatJob {
    std::shared_ptr<const ChatTemplate> chat_template{};  // shared by the loop and this thread
    Chat chat{};
};

// A job: render `chat` and encode the result, encode `text`, or decode `ids`. With bad words:
// encode the bad words, and leave the ids unchanged.
struct TextJob {
    JobId id{};
    std::vector<std::string> client{};  // FairQueue's path; the first part is the connection
    std::optional<ChatJob> chat{};
    std::optional<std::string> text{};
    std::vector<TokenId> ids{};
    std::vector<std::string> bad_words{};
    text::AddSpecial add_special = text::AddSpecial::kYes;
    text::SkipSpecial skip_special = text::SkipSpecial::kNo;
    bool wants_text = false;   // decode the result of encoding
    bool wants_texts = false;  // decode every token by itself
};

struct TextDone {
    JobId id{};
    std::vector<TokenId> ids{};
    std::vector<std::vector<TokenId>> bad_tokens{};  // of the bad words
    std::string text{};
    std::vector<std::string> texts{};  // of each token, if the job wants them
    std::vector<std::string> bytes{};  // of each token, in hex, if they differ from its text
    std::vector<TokenId> special{};    // the special tokens among `ids`
    std::optional<Error> error{};
};

[[nodiscard]] std::size_t bytes_of(const TextJob& job);
// Runs the job. Reads the clock if a chat template prints the date.
[[nodiscard]] TextDone run_job(
    const text::Tokenizer& tokenizer, TextJob job, const Interrupt& interrupt = {}
);

class TextWorker {
  public:
    // The loop itself encodes a text if the encoding processes at most this many bytes, which takes
    // about 0.25 ms.
    static constexpr std::size_t kInlineBytesMax = std::size_t{4} << 10;
    static constexpr std::size_t kQueueBytesMax = std::size_t{64} << 20;
    static constexpr std::size_t kClientBytesMax = kQueueBytesMax / 2;  // two of the longest texts
    // The memory of a waiting job, however short its text is.
    static constexpr std::size_t kJobBytes = 512;
    // The limit of a job's CPU time, so that a busy machine does not cause refusals. The longest
    // text that a door accepts, 16 MiB, needs about 1 s.
    static constexpr auto kJobCpuMax = std::chrono::seconds(4);

    explicit TextWorker(
        std::shared_ptr<const text::Tokenizer> tokenizer, Fairness fairness = Fairness::kFair
    );
    // Interrupts the job in progress, and drops waiting jobs.
    ~TextWorker();
    TextWorker(const TextWorker&) = delete;
    TextWorker& operator=(const TextWorker&) = delete;

    // Errors: kResourceExhausted if too much text waits already. take_done() may report this error
    // for another job, which was dropped in place of this one.
    [[nodiscard]] Result<> push(TextJob job);
    // Called when no client waits for the job any more: take_done() returns no result for it,
    // unless the result is ready.
    void cancel(JobId job);
    // Readable when a job is done; for a poller.
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::vector<TextDone> take_done();
    // Returns whether a job is in progress, for which the destructor would wait.
    [[nodiscard]] bool is_busy();

  private:
    void run();
    [[nodiscard]] std::vector<std::string> path_of(const TextJob& job) const;
    void give(TextDone done) REQUIRES(mutex_);

    std::shared_ptr<const text::Tokenizer> tokenizer_;
    Fairness fairness_;
    int fd_ = -1;  // an eventfd
    Mutex mutex_;
    Condition changed_;
    FairQueue<JobId> queue_ GUARDED_BY(mutex_){};
    std::map<JobId, TextJob> jobs_ GUARDED_BY(mutex_){};  // the jobs of queue_
    std::vector<TextDone> done_ GUARDED_BY(mutex_){};
    std::optional<JobId> current_ GUARDED_BY(mutex_){};  // the job in progress
    bool is_stopping_ GUARDED_BY(mutex_) = false;
    std::atomic<bool> is_cancelled_{false};  // whether the job in progress was cancelled
    std::thread thread_;                     // last, because it uses the members above
};

}  // namespace pitstop::tokenizer
