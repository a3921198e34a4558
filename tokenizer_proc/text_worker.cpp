#include "tokenizer_proc/text_worker.h"

#include "base/check.h"

#include <ctime>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop {

std::size_t bytes_of(const TextJob& job) {
    if (job.chat) return job.chat->chat.variables.size() + job.chat->chat.chat_template.size();
    return job.text ? job.text->size() : job.ids.size() * sizeof(TokenId);
}

TextDone run_job(const Tokenizer& tokenizer, TextJob job) {
    TextDone done{.id = job.id, .ids = std::move(job.ids)};
    if (job.chat) {
        const std::time_t seconds = std::time(nullptr);
        std::tm now{};
        ::localtime_r(&seconds, &now);
        Result<std::string> prompt = job.chat->chat_template->render(job.chat->chat, now);
        if (!prompt) {
            done.error = prompt.error();
            return done;
        }
        Result<std::vector<TokenId>> ids = tokenizer.encode(*prompt, job.add_special);
        if (ids) {
            done.ids = *std::move(ids);
            done.text = *std::move(prompt);
        } else {
            done.error = ids.error();
        }
        return done;
    }
    if (job.text) {
        Result<std::vector<TokenId>> ids = tokenizer.encode(*job.text, job.add_special);
        if (!ids) {
            done.error = ids.error();
            return done;
        }
        done.ids = *std::move(ids);
        if (!job.wants_text) return done;
    }
    Result<std::string> text = tokenizer.decode(done.ids, job.skip_special);
    if (text) {
        done.text = *std::move(text);
    } else {
        done.error = text.error();
    }
    if (!job.wants_texts || done.error) return done;
    done.texts.reserve(done.ids.size());
    for (const TokenId& id : done.ids) {
        Result<std::string> one = tokenizer.decode({&id, 1}, job.skip_special);
        done.texts.push_back(one ? *std::move(one) : std::string());
    }
    return done;
}

TextWorker::TextWorker(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(fd_ >= 0);
    thread_ = std::thread([this] { run(); });
}

TextWorker::~TextWorker() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::close(fd_);
}

bool TextWorker::push(TextJob job) {
    {
        const std::lock_guard lock(mutex_);
        const std::size_t num_bytes = bytes_of(job);
        if (queue_bytes_ + num_bytes > kQueueBytesMax) return false;
        queue_bytes_ += num_bytes;
        queue_.push_back(std::move(job));
    }
    changed_.notify_all();
    return true;
}

std::vector<TextDone> TextWorker::take_done() {
    const std::lock_guard lock(mutex_);
    eventfd_t count = 0;
    ::eventfd_read(fd_, &count);
    return std::exchange(done_, {});
}

bool TextWorker::is_busy() {
    const std::lock_guard lock(mutex_);
    return is_busy_;
}

void TextWorker::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
        if (is_stopping_) return;
        TextJob job = std::move(queue_.front());
        queue_.pop_front();
        queue_bytes_ -= bytes_of(job);
        is_busy_ = true;
        lock.unlock();
        TextDone done = run_job(*tokenizer_, std::move(job));
        lock.lock();
        is_busy_ = false;
        done_.push_back(std::move(done));
        ::eventfd_write(fd_, 1);
    }
}

}  // namespace pitstop
