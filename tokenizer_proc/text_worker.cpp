#include "tokenizer_proc/text_worker.h"

#include "base/check.h"

#include <fmt/format.h>

#include <ctime>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop::tokenizer {
namespace {

// Returns the CPU time that this thread has used.
std::chrono::nanoseconds thread_time() {
    std::timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Encodes each word as at the start of a text. Also encodes it after a space, and adds it
// if its first token differs and it has no more tokens.
// Source: vLLM, vllm/sampling_params.py: SamplingParams.update_from_tokenizer.
Result<std::vector<std::vector<TokenId>>> encode_bad_words(
    const text::Tokenizer& tokenizer,
    const std::vector<std::string>& words,
    const Interrupt& interrupt
) {
    std::vector<std::vector<TokenId>> sequences;
    for (const std::string& word : words) {
        const std::string bare = word.substr(word.find_first_not_of(" \t\n\v\f\r"));
        ASSIGN_OR_RETURN(
            std::vector<TokenId> first, tokenizer.encode(bare, text::AddSpecial::kNo, interrupt)
        );
        ASSIGN_OR_RETURN(
            std::vector<TokenId> later,
            tokenizer.encode(" " + bare, text::AddSpecial::kNo, interrupt)
        );
        if (first.empty()) {
            return make_error(
                ErrorCode::kInvalidArgument, "bad_words has '{}', which has no tokens", word
            );
        }
        const bool is_other = later.size() == first.size() && later.front() != first.front();
        sequences.push_back(std::move(first));
        if (is_other) sequences.push_back(std::move(later));
    }
    return sequences;
}

std::string hex(std::string_view bytes) {
    std::string digits;
    for (const char c : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return digits;
}

// Adds the text and the bytes of each token.
void tell_tokens(const text::Tokenizer& tokenizer, text::SkipSpecial skip_special, TextDone& done) {
    done.texts.reserve(done.ids.size());
    done.bytes.reserve(done.ids.size());
    for (const TokenId& id : done.ids) {
        const bool is_special = tokenizer.is_special(id);
        if (is_special) done.special.push_back(id);
        Result<std::string> text = tokenizer.decode({&id, 1}, skip_special);
        std::string& told = done.texts.emplace_back(text ? *std::move(text) : std::string());
        std::string& bytes = done.bytes.emplace_back();
        if (is_special && skip_special == text::SkipSpecial::kYes) continue;
        const Result<std::string> added = tokenizer.bytes_of(id);
        if (added && *added != told) bytes = hex(*added);
    }
}

}  // namespace

std::size_t bytes_of(const TextJob& job) {
    if (job.chat) return job.chat->chat.variables.size() + job.chat->chat.chat_template.size();
    std::size_t bytes = job.text ? job.text->size() : job.ids.size() * sizeof(TokenId);
    for (const std::string& word : job.bad_words) bytes += 2 * (word.size() + 1);  // in two forms
    return bytes;
}

TextDone run_job(const text::Tokenizer& tokenizer, TextJob job, const Interrupt& interrupt) {
    TextDone done{.id = job.id, .ids = std::move(job.ids)};
    if (!job.bad_words.empty()) {
        auto sequences = encode_bad_words(tokenizer, job.bad_words, interrupt);
        if (!sequences) {
            done.error = sequences.error();
            return done;
        }
        done.bad_tokens = *std::move(sequences);
        if (!job.text) return done;
    }
    if (job.chat) {
        const std::time_t seconds = std::time(nullptr);
        std::tm now{};
        ::localtime_r(&seconds, &now);
        Result<std::string> prompt =
            job.chat->chat_template->render(job.chat->chat, now, interrupt);
        if (!prompt) {
            done.error = prompt.error();
            return done;
        }
        Result<std::vector<TokenId>> ids = tokenizer.encode(*prompt, job.add_special, interrupt);
        if (ids) {
            done.ids = *std::move(ids);
            done.text = *std::move(prompt);
        } else {
            done.error = ids.error();
        }
        return done;
    }
    if (job.text) {
        Result<std::vector<TokenId>> ids = tokenizer.encode(*job.text, job.add_special, interrupt);
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
    if (job.wants_texts && !done.error) tell_tokens(tokenizer, job.skip_special, done);
    return done;
}

TextWorker::TextWorker(std::shared_ptr<const text::Tokenizer> tokenizer, Fairness fairness)
    : tokenizer_(std::move(tokenizer)),
      fairness_(fairness),
      fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(fd_ >= 0);
    thread_ = std::thread([this] { run(); });
}

TextWorker::~TextWorker() {
    {
        const MutexLock lock(mutex_);
        is_stopping_ = true;
        is_cancelled_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::close(fd_);
}

std::vector<std::string> TextWorker::path_of(const TextJob& job) const {
    return fairness_ == Fairness::kFair ? job.client : std::vector<std::string>{};
}

Result<> TextWorker::push(TextJob job) {
    {
        const MutexLock lock(mutex_);
        const std::size_t num_bytes = bytes_of(job) + kJobBytes;
        if (queue_.weight_of(path_of(job)) + num_bytes > kClientBytesMax) {
            return make_error(
                ErrorCode::kResourceExhausted,
                "more than {} bytes of this client's text wait to be tokenized",
                kClientBytesMax
            );
        }
        const JobId id = job.id;
        queue_.push(path_of(job), id, num_bytes);
        jobs_.emplace(id, std::move(job));
        // A job uses at most a quarter of the queue's bytes, so dropping a few jobs is enough.
        while (queue_.weight() > kQueueBytesMax) {
            const JobId victim = queue_.last_of_largest();
            const auto place = jobs_.find(victim);
            queue_.erase(path_of(place->second), victim);
            jobs_.erase(place);
            const Error error = make_error(
                ErrorCode::kResourceExhausted,
                "more than {} bytes of text wait to be tokenized, most of them this client's",
                kQueueBytesMax
            );
            if (victim == id) return error;
            give({.id = victim, .error = error});
        }
    }
    changed_.notify_all();
    return Ok{};
}

void TextWorker::cancel(JobId job) {
    const MutexLock lock(mutex_);
    if (const auto place = jobs_.find(job); place != jobs_.end()) {
        queue_.erase(path_of(place->second), job);
        jobs_.erase(place);
    } else if (current_ == job) {
        is_cancelled_ = true;
    }
}

void TextWorker::give(TextDone done) {
    done_.push_back(std::move(done));
    ::eventfd_write(fd_, 1);
}

std::vector<TextDone> TextWorker::take_done() {
    const MutexLock lock(mutex_);
    eventfd_t count = 0;
    ::eventfd_read(fd_, &count);
    return std::exchange(done_, {});
}

bool TextWorker::is_busy() {
    const MutexLock lock(mutex_);
    return current_.has_value();
}

void TextWorker::run() {
    MutexLock lock(mutex_);
    for (;;) {
        while (!is_stopping_ && queue_.empty()) changed_.wait(lock);
        if (is_stopping_) return;
        const auto place = jobs_.find(queue_.pop());
        TextJob job = std::move(place->second);
        jobs_.erase(place);
        current_ = job.id;
        is_cancelled_ = false;
        lock.unlock();
        const auto end = thread_time() + kJobCpuMax;
        const Interrupt interrupt = [this, end]() -> std::optional<Error> {
            if (is_cancelled_) return Error{ErrorCode::kAborted, "no client waits for the result"};
            if (thread_time() < end) return std::nullopt;
            return make_error(
                ErrorCode::kTooLarge,
                "rendering and tokenizing the text took more than {} s",
                std::chrono::seconds(kJobCpuMax).count()
            );
        };
        TextDone done = run_job(*tokenizer_, std::move(job), interrupt);
        lock.lock();
        current_.reset();
        if (!is_cancelled_) give(std::move(done));
    }
}

}  // namespace pitstop::tokenizer
