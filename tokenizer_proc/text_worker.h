// Tokenizes texts and renders chats on a thread of its own, so that neither a prompt of megabytes
// nor a template delays other clients' output. Clients take turns (base/fair_queue.h): for each
// earlier job of its own client, a job waits for at most one of each other client, and for the one
// in progress. The loop itself tokenizes short texts: run_job().
//
// Thread:  the queue takes and returns values; its owner is the loop thread.
// Bounded: kQueueBytesMax of text waits, kClientBytesMax of one client's. When the queue is full,
//          the newest job of the client with the most is dropped. A job ends within kJobCpuMax; a
//          job that was cancelled ends within a millisecond, or at the next stage of encoding.
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

// A chat to render first: its text is what is encoded.
struct ChatJob {
    std::shared_ptr<const ChatTemplate> chat_template{};  // shared by the loop and this thread
    Chat chat{};
};

// A job: render `chat` and encode it, encode `text`, or decode `ids`. With bad words, encode these
// and leave the ids as they are.
struct TextJob {
    JobId id{};
    std::vector<std::string> client{};  // its client (FairQueue); the first part is the connection
    std::optional<ChatJob> chat{};
    std::optional<std::string> text{};
    std::vector<TokenId> ids{};
    std::vector<std::string> bad_words{};
    text::AddSpecial add_special = text::AddSpecial::kYes;
    text::SkipSpecial skip_special = text::SkipSpecial::kNo;
    bool wants_text = false;   // whether to decode the result of encoding
    bool wants_texts = false;  // whether to decode every token by itself
};

struct TextDone {
    JobId id{};
    std::vector<TokenId> ids{};
    std::vector<std::vector<TokenId>> bad_tokens{};  // the bad words' tokens
    std::string text{};
    std::vector<std::string> texts{};  // each token's, if asked for
    std::vector<std::string> bytes{};  // each token's, in hex, if different from its text
    std::vector<TokenId> special{};    // the special tokens among `ids`
    std::optional<Error> error{};
};

[[nodiscard]] std::size_t bytes_of(const TextJob& job);
// Reads the clock for a chat template that prints the date.
[[nodiscard]] TextDone run_job(
    const text::Tokenizer& tokenizer, TextJob job, const Interrupt& interrupt = {}
);

class TextWorker {
  public:
    // The loop itself encodes a text if the encoding processes at most this many bytes: about a
    // quarter of a millisecond.
    static constexpr std::size_t kInlineBytesMax = std::size_t{4} << 10;
    static constexpr std::size_t kQueueBytesMax = std::size_t{64} << 20;
    static constexpr std::size_t kClientBytesMax = kQueueBytesMax / 2;  // two of the longest
    // The memory of a waiting job, however short its text.
    static constexpr std::size_t kJobBytes = 512;
    // The thread time of a job, so that a busy machine refuses nothing: the longest text that a
    // door accepts, 16 MiB, needs about one second.
    static constexpr auto kJobCpuMax = std::chrono::seconds(4);

    explicit TextWorker(
        std::shared_ptr<const text::Tokenizer> tokenizer, Fairness fairness = Fairness::kFair
    );
    // Interrupts the job in progress and drops waiting jobs.
    ~TextWorker();
    TextWorker(const TextWorker&) = delete;
    TextWorker& operator=(const TextWorker&) = delete;

    // Errors: kResourceExhausted if too much text waits already. take_done() may report the same
    // for another job.
    [[nodiscard]] Result<> push(TextJob job);
    // Called when no client waits for the job: take_done() returns no result for it, unless
    // one is ready.
    void cancel(JobId job);
    // Readable when a job is done, for a poller.
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::vector<TextDone> take_done();
    // Returns whether the destructor would wait.
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
    std::atomic<bool> is_cancelled_{false};  // the job in progress
    std::thread thread_;                     // last, because it uses all of the above
};

}  // namespace pitstop::tokenizer
