#include "tp_worker/update/keeper.h"

#include "base/mapped_file.h"
#include "messages/codec.h"
#include "tp_worker/update/kept_weights.h"

#include <utility>

namespace pitstop::tp_worker {

Keeper::Keeper(Args args) : args_(std::move(args)), directory_(args_.directory, args_.model_dir) {
    thread_ = std::thread([this] { run(); });
}

Keeper::~Keeper() {
    {
        const MutexLock lock(mutex_);
        is_cancelled_ = true;
        is_over_ = true;
        next_.reset();
    }
    is_changed_.notify_one();
    thread_.join();
}

void Keeper::handle_step(const messages::WorkerKeep& step, const Arena* live) {
    const bool is_mine = is_root() || step.step == messages::KeepStep::kWrite;
    const bool ends_others =
        step.step == messages::KeepStep::kBegin || step.step == messages::KeepStep::kDrop;
    {
        const MutexLock lock(mutex_);
        if (ends_others) {
            is_cancelled_ = true;
            next_.reset();
            read_ = nullptr;
        }
        if (!is_mine) return;
        next_ = Job{step, live};
        if (step.step == messages::KeepStep::kWrite) read_ = live;
    }
    is_changed_.notify_one();
}

void Keeper::let_go(const Arena& memory) {
    const MutexLock lock(mutex_);
    if (read_ == &memory) read_ = nullptr;
}

void Keeper::run() {
    MutexLock lock(mutex_);
    for (;;) {
        while (!is_over_ && !next_) is_changed_.wait(lock);
        if (is_over_) return;
        const Job job = *std::exchange(next_, std::nullopt);
        is_cancelled_ = false;
        lock.unlock();
        const Result<std::string> path = execute(job);
        if (job.step.step != messages::KeepStep::kDrop) {
            messages::WorkerKept answer;
            answer.call = job.step.call;
            answer.rank = args_.rank;
            answer.step = job.step.step;
            if (path) {
                answer.path = *path;
            } else {
                answer.verdict = path.error();
            }
            args_.answer(encode(answer));
        }
        lock.lock();
    }
}

Result<std::string> Keeper::execute(const Job& job) {
    switch (job.step.step) {
        case messages::KeepStep::kBegin:
            return begin(job.step);
        case messages::KeepStep::kWrite:
            RETURN_IF_ERROR(write(job));
            return std::string();
        case messages::KeepStep::kSeal:
            return seal(job.step);
        case messages::KeepStep::kDrop:
            RETURN_IF_ERROR(directory_.drop());
            return std::string();
    }
    return std::string();
}

// Returns the path of the version if an earlier commit left it there and it has not been
// changed since.
Result<std::string> Keeper::begin(const messages::WorkerKeep& step) {
    ASSIGN_OR_RETURN(const std::optional<std::string> kept, directory_.find(step.digest));
    if (kept && is_whole(*kept, step.digest)) {
        RETURN_IF_ERROR(directory_.drop());
        return *kept;
    }
    RETURN_IF_ERROR(go_on());
    if (kept) RETURN_IF_ERROR(directory_.remove(*kept));
    RETURN_IF_ERROR(directory_.begin());
    RETURN_IF_ERROR(KeptWeights(args_.layout, step).create(directory_.writing()));
    for (const SmallFile& file : args_.files) RETURN_IF_ERROR(directory_.write(file));
    args_.fault_point.reach("keep_begun");
    return std::string();
}

bool Keeper::is_whole(const std::string& path, const std::string& digest) {
    for (const SmallFile& file : args_.files) {
        const Result<std::string> bytes =
            MappedFile::read(fmt::format("{}/{}", path, file.name), kSmallFileBytesMax);
        if (!bytes || *bytes != file.bytes) return false;
    }
    const Result<std::string> read = digest_of(path);
    return read && *read == digest;
}

Result<std::string> Keeper::digest_of(const std::string& directory) {
    Pacer pacer(args_.pace);
    return digest_of_checkpoint(directory, args_.add_run, [&] {
        pacer.rest_if_due();
        return go_on();
    });
}

Result<> Keeper::write(const Job& job) {
    if (job.live == nullptr) {
        return make_error(
            ErrorCode::kAborted,
            "rank {}: the memory of the weights was released or overwritten before they were "
            "written",
            raw(args_.rank)
        );
    }
    Pacer pacer(args_.pace);
    return KeptWeights(args_.layout, job.step)
        .write(
            {.directory = directory_.writing(),
             .is_root = is_root(),
             .copy = [&](std::int64_t begin,
                         std::span<std::byte> out) { return copy_piece(*job.live, begin, out); },
             .between =
                 [&] {
                     args_.fault_point.reach("keep_half");
                     pacer.rest_if_due();
                 }}
        );
}

Result<> Keeper::copy_piece(const Arena& live, std::int64_t begin, std::span<std::byte> out) {
    RETURN_IF_ERROR(go_on());
    const MutexLock lock(mutex_);
    if (read_ != &live) {
        return make_error(
            ErrorCode::kAborted,
            "rank {}: the memory of the weights was needed before all of them were written",
            raw(args_.rank)
        );
    }
    live.fetch(begin, out);
    return Ok{};
}

Result<std::string> Keeper::seal(const messages::WorkerKeep& step) {
    ASSIGN_OR_RETURN(const std::string digest, digest_of(directory_.writing()));
    if (digest != step.digest) {
        return make_error(
            ErrorCode::kDataLoss,
            "the weights read back have the digest {}; the version has {}",
            digest,
            step.digest
        );
    }
    RETURN_IF_ERROR(sync_path(directory_.writing() + "/model.safetensors"));
    args_.fault_point.reach("keep_seal");
    return directory_.seal(step.digest);
}

Result<> Keeper::go_on() const {
    if (!is_cancelled_) return Ok{};
    return Error{ErrorCode::kAborted, "a newer version was committed"};
}

}  // namespace pitstop::tp_worker
