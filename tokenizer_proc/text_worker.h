// Long texts are tokenized on a thread of their own, so that one prompt of megabytes does not hold
// up everybody's output. Short ones are done at once by the loop: run_job().
//
// Thread:  the queue takes and gives values; its owner is the loop thread.
// Bounded: kQueueBytesMax of text waits; a job in progress cannot be interrupted (16 MiB, the most
//          a door accepts, take about a second).
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/chat_template.h"
#include "tokenizer_proc/request_table.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pitstop {

// A chat to render before anything else: its text is what is encoded.
struct ChatJob {
    std::shared_ptr<const ChatTemplate> chat_template{};  // shared: the loop's, on this thread
    Chat chat{};
};

// Render `chat` and encode it, encode `text`, or decode `ids`.
struct TextJob {
    JobId id{};
    std::optional<ChatJob> chat{};
    std::optional<std::string> text{};
    std::vector<TokenId> ids{};
    AddSpecial add_special = AddSpecial::kYes;
    SkipSpecial skip_special = SkipSpecial::kNo;
    bool wants_text = false;   // also decode what was encoded
    bool wants_texts = false;  // and every token by itself
};

struct TextDone {
    JobId id{};
    std::vector<TokenId> ids{};
    std::string text{};
    std::vector<std::string> texts{};  // of each token, if asked for
    std::optional<Error> error{};
};

[[nodiscard]] std::size_t bytes_of(const TextJob& job);
// Reads the clock for a chat template that says the date.
[[nodiscard]] TextDone run_job(const Tokenizer& tokenizer, TextJob job);

class TextWorker {
  public:
    // Up to this many bytes (about a millisecond) the loop does itself.
    static constexpr std::size_t kInlineBytesMax = std::size_t{16} << 10;
    static constexpr std::size_t kQueueBytesMax = std::size_t{64} << 20;

    explicit TextWorker(std::shared_ptr<const Tokenizer> tokenizer);
    // Waits for the job in progress; jobs that wait are dropped.
    ~TextWorker();
    TextWorker(const TextWorker&) = delete;
    TextWorker& operator=(const TextWorker&) = delete;

    // False: too much text is waiting already.
    [[nodiscard]] bool push(TextJob job);
    // Readable while something is done. For a poller.
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::vector<TextDone> take_done();
    // Whether the destructor would wait.
    [[nodiscard]] bool is_busy();

  private:
    void run();

    std::shared_ptr<const Tokenizer> tokenizer_;
    int fd_ = -1;  // an eventfd
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<TextJob> queue_{};   // GUARDED_BY(mutex_)
    std::size_t queue_bytes_ = 0;   // GUARDED_BY(mutex_)
    std::vector<TextDone> done_{};  // GUARDED_BY(mutex_)
    bool is_busy_ = false;          // GUARDED_BY(mutex_)
    bool is_stopping_ = false;      // GUARDED_BY(mutex_)
    std::thread thread_;            // last: it uses all of the above
};

}  // namespace pitstop
