#include "tp_worker/update/adapter_keeper.h"

#include "base/log.h"
#include "messages/keep.h"
#include "tp_worker/update/kept_directory.h"
#include "tp_worker/update/kept_weights.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <utility>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNamed = "adapter-";
constexpr std::string_view kBeingWritten = ".adapter-";
constexpr std::string_view kMark = ".done-";  // followed by the rank
constexpr std::string_view kFailed = ".failed";
constexpr std::string_view kConfig = "adapter_config.json";
constexpr std::string_view kTensors = "adapter_model.safetensors";

KeptWeights file_of(const AdapterBytes& bytes, messages::AdapterId id) {
    messages::WorkerKeep name;
    name.epoch = Epoch{static_cast<std::int64_t>(id)};
    return {bytes.layout(), name, {.file = std::string(kTensors), .prefix = "base_model.model."}};
}

}  // namespace

AdapterKeeper::AdapterKeeper(Args args) : args_(std::move(args)) {
    thread_ = std::thread([this] { run(); });
}

AdapterKeeper::~AdapterKeeper() {
    {
        const MutexLock lock(mutex_);
        is_over_ = true;
        is_cancelled_ = true;
    }
    is_changed_.notify_one();
    thread_.join();
}

void AdapterKeeper::keep(
    messages::AdapterId id, std::shared_ptr<const AdapterBytes> bytes, std::string config
) {
    {
        const MutexLock lock(mutex_);
        jobs_.push_back({id, std::move(bytes), std::move(config)});
    }
    is_changed_.notify_one();
}

void AdapterKeeper::forget(messages::AdapterId id) {
    {
        const MutexLock lock(mutex_);
        std::erase_if(jobs_, [&](const Job& job) { return job.id == id; });
        if (current_ == id) is_cancelled_ = true;
        jobs_.push_back({.id = id});
    }
    is_changed_.notify_one();
}

void AdapterKeeper::run() {
    MutexLock lock(mutex_);
    for (;;) {
        while (!is_over_ && jobs_.empty()) is_changed_.wait(lock);
        if (is_over_) return;
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        current_ = job.id;
        is_cancelled_ = false;
        lock.unlock();
        Result<> done = Ok{};
        if (job.bytes) {
            done = write(job);
            clear_failed(job.id, !done);
        } else {
            std::error_code failed;
            for (const std::string_view prefix : {kNamed, kBeingWritten})
                fs::remove_all(path_of(prefix, job.id), failed);
        }
        if (!done && !is_cancelled_) {
            spdlog::warn(
                "version {} of an adapter is not kept: {}",
                static_cast<std::uint64_t>(job.id),
                done.error().message
            );
        }
        job = {};
        lock.lock();
        current_ = {};
    }
}

std::string AdapterKeeper::path_of(std::string_view prefix, messages::AdapterId id) const {
    return fmt::format("{}/{}{}", args_.directory, prefix, static_cast<std::uint64_t>(id));
}

Result<> AdapterKeeper::write(const Job& job) {
    const std::string directory = path_of(kBeingWritten, job.id);
    if (has_failed_anywhere(job.id)) return Ok{};
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
        return io_error("cannot make", directory, errno);
    const bool is_root = raw(args_.rank) == 0;
    const KeptWeights file = file_of(*job.bytes, job.id);
    if (is_root) {
        RETURN_IF_ERROR(write_file(fmt::format("{}/{}", directory, kConfig), job.config));
        RETURN_IF_ERROR(file.create(directory));
    }
    Pacer pacer(args_.pace);
    RETURN_IF_ERROR(file.write(
        {.directory = directory,
         .is_root = is_root,
         .copy = [&](std::int64_t begin, std::span<std::byte> out) -> Result<> {
             Result<> may = go_on();
             return may ? job.bytes->read(begin, out) : may;
         },
         .between =
             [&] {
                 args_.fault_point.reach("keep_adapter");
                 pacer.rest_if_due();
             }}
    ));
    const std::string mark = fmt::format("{}/{}{}", directory, kMark, raw(args_.rank));
    RETURN_IF_ERROR(write_file(mark, ""));
    return seal(job.id);
}

bool AdapterKeeper::has_failed_anywhere(messages::AdapterId id) const {
    std::error_code failed;
    return fs::exists(fmt::format("{}/{}", path_of(kBeingWritten, id), kFailed), failed);
}

// A failed rank leaves its mark first, and each rank looks for the mark after its last write. So
// the last rank to finish removes the files of all.
void AdapterKeeper::clear_failed(messages::AdapterId id, bool has_failed) {
    const std::string directory = path_of(kBeingWritten, id);
    if (has_failed && args_.tp > 1)
        static_cast<void>(write_file(fmt::format("{}/{}", directory, kFailed), ""));
    std::error_code ignored;
    if (has_failed && args_.tp == 1) {
        fs::remove_all(directory, ignored);
    } else if (has_failed_anywhere(id)) {
        for (const std::string_view name : {kConfig, kTensors})
            fs::remove(fmt::format("{}/{}", directory, name), ignored);
    }
}

// Two ranks may find all marks at once: the first one renames, and the second finds no directory.
Result<> AdapterKeeper::seal(messages::AdapterId id) {
    const std::string directory = path_of(kBeingWritten, id);
    const auto mark_of = [&](int rank) { return fmt::format("{}/{}{}", directory, kMark, rank); };
    std::error_code failed;
    for (int rank = 0; rank < args_.tp; ++rank) {
        if (!fs::exists(mark_of(rank), failed)) return Ok{};
    }
    const std::string name = path_of(kNamed, id);
    if (::rename(directory.c_str(), name.c_str()) != 0)
        return errno == ENOENT ? Result<>(Ok{})
                               : Result<>(io_error("cannot rename to", name, errno));
    for (int rank = 0; rank < args_.tp; ++rank)
        fs::remove(fmt::format("{}/{}{}", name, kMark, rank), failed);
    RETURN_IF_ERROR(sync_path(name));
    RETURN_IF_ERROR(sync_path(args_.directory));
    spdlog::info("version {} of an adapter is kept in {}", static_cast<std::uint64_t>(id), name);
    return Ok{};
}

Result<> AdapterKeeper::go_on() const {
    if (!is_cancelled_) return Ok{};
    return Error{ErrorCode::kAborted, "the adapter is no longer used"};
}

}  // namespace pitstop::tp_worker
