// Texts are tokenized and chats rendered on a thread of their own, so that neither a prompt of
// megabytes nor a template holds up everybody's output. Clients take turns (base/fair_queue.h): a
// job waits for at most one of each other client, per job of its own client before it, and for the
// one in progress. Short texts are done at once by the loop: run_job().
//
// Thread:  the queue takes and gives values; its owner is the loop thread.
// Bounded: kQueueBytesMax of text waits, kClientBytesMax of one client's; when all is full, the
//          newest job of who has the most gives way. A job ends within kJobCpuMax; one that nobody
//          waits for any more ends within a millisecond, or at the next stage of encoding.
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

// Holds a chat to render before anything else: its text is what is encoded.
struct ChatJob {
    std::shared_ptr<const ChatTemplate> chat_template{};  // shared: the loop's, on this thread
    Chat chat{};
};

// Asks to render `chat` and encode it, to encode `text`, or to decode `ids`; or, where there are
// bad words, to encode them and leave the ids as they are.
struct TextJob {
    JobId id{};
    std::vector<std::string> client{};  // says whose it is (FairQueue); the first is the connection
    std::optional<ChatJob> chat{};
    std::optional<std::string> text{};
    std::vector<TokenId> ids{};
    std::vector<std::string> bad_words{};
    text::AddSpecial add_special = text::AddSpecial::kYes;
    text::SkipSpecial skip_special = text::SkipSpecial::kNo;
    bool wants_text = false;   // whether to decode what was encoded
    bool wants_texts = false;  // whether to decode every token by itself
};

struct TextDone {
    JobId id{};
    std::vector<TokenId> ids{};
    std::vector<std::vector<TokenId>> bad_tokens{};  // the bad words' tokens
    std::string text{};
    std::vector<std::string> texts{};  // each token's, if asked for
    std::vector<std::string> bytes{};  // likewise; in hex where they are another than its text
    std::vector<TokenId> special{};    // likewise; those of `ids`
    std::optional<Error> error{};
};

[[nodiscard]] std::size_t bytes_of(const TextJob& job);
// Reads the clock for a chat template that says the date.
[[nodiscard]] TextDone run_job(
    const text::Tokenizer& tokenizer, TextJob job, const Interrupt& interrupt = {}
);

class TextWorker {
  public:
    // A text is done by the loop itself if encoding it goes through at most so many bytes: about a
    // quarter of a millisecond.
    static constexpr std::size_t kInlineBytesMax = std::size_t{4} << 10;
    static constexpr std::size_t kQueueBytesMax = std::size_t{64} << 20;
    static constexpr std::size_t kClientBytesMax = kQueueBytesMax / 2;  // two of the longest
    // A job that waits takes memory of its own, however short its text.
    static constexpr std::size_t kJobBytes = 512;
    // A job may take so much of the thread's own time, so that a busy machine refuses nothing: the
    // longest text that a door takes, 16 MiB, needs about one second.
    static constexpr auto kJobCpuMax = std::chrono::seconds(4);

    explicit TextWorker(
        std::shared_ptr<const text::Tokenizer> tokenizer, Fairness fairness = Fairness::kFair
    );
    // Interrupts the job in progress; jobs that wait are dropped.
    ~TextWorker();
    TextWorker(const TextWorker&) = delete;
    TextWorker& operator=(const TextWorker&) = delete;

    // Errors: kResourceExhausted, too much text is waiting already. It may also be said of another
    // job, by take_done().
    [[nodiscard]] Result<> push(TextJob job);
    // Nobody waits for it any more: nothing is given for it, unless that waits in take_done().
    void cancel(JobId job);
    // This is readable while something is done, for a poller.
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
    std::map<JobId, TextJob> jobs_ GUARDED_BY(mutex_){};  // those in queue_
    std::vector<TextDone> done_ GUARDED_BY(mutex_){};
    std::optional<JobId> current_ GUARDED_BY(mutex_){};  // the job in progress
    bool is_stopping_ GUARDED_BY(mutex_) = false;
    std::atomic<bool> is_cancelled_{false};  // the job in progress
    std::thread thread_;                     // comes last, as it uses all of the above
};

}  // namespace pitstop::tokenizer
