// A rank's part of --keep-committed: writes the version that serves to the disk, on a thread of its
// own, while passes run and the next update is staged (messages/keep.h has the steps).
//
// The disk may be slow, or stall: nothing waits for it. A piece of the weights is copied under a
// lock and written without it. Code that is about to change that memory calls let_go(), which waits
// at most for the copy of one piece and abandons the version.
//
// Thread:  the loop's for handle_step() and let_go(); its own for the work, which rests as
//          stages do (pace.h).
// Bounded: one step in progress, and one waiting step, which a newer one replaces.
#pragma once

#include "base/fault_point.h"
#include "base/mutex.h"
#include "base/result.h"
#include "digest/digest_run.h"
#include "messages/frames.h"
#include "messages/keep.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/update/kept_directory.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/weights/weight_layout.h"

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {

class Keeper {
  public:
    struct Args {
        std::string directory{};
        std::string model_dir{};         // the directory that the tree was started from
        std::vector<SmallFile> files{};  // rank 0's
        Rank rank{};
        const WeightLayout& layout;
        digest::AddRun add_run = nullptr;
        const Pace& pace;
        FaultPoint fault_point;
        std::function<void(messages::Frames)> answer{};  // called on any thread
    };
    explicit Keeper(Args args);
    // Waits for the current piece.
    ~Keeper();
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    // `live` is the copy that serves; null if there is nothing to keep.
    void handle_step(const messages::WorkerKeep& step, const Arena* live);
    // Called before that memory changes. Once this returns, the keeper does not read it any more.
    void let_go(const Arena& memory);

  private:
    struct Job {
        messages::WorkerKeep step{};
        const Arena* live = nullptr;
    };
    void run();
    Result<std::string> execute(const Job& job);
    Result<std::string> begin(const messages::WorkerKeep& step);
    [[nodiscard]] bool is_whole(const std::string& path, const std::string& digest);
    Result<std::string> digest_of(const std::string& directory);
    Result<> write(const Job& job);
    Result<std::string> seal(const messages::WorkerKeep& step);
    Result<> copy_piece(const Arena& live, std::int64_t begin, std::span<std::byte> out);
    [[nodiscard]] Result<> go_on() const;
    [[nodiscard]] bool is_root() const { return raw(args_.rank) == 0; }

    Args args_;
    KeptDirectory directory_;
    std::atomic<bool> is_cancelled_{false};
    Mutex mutex_{};
    Condition is_changed_{};
    std::optional<Job> next_ GUARDED_BY(mutex_){};
    const Arena* read_ GUARDED_BY(mutex_) = nullptr;  // the memory that the current write reads
    bool is_over_ GUARDED_BY(mutex_) = false;
    std::thread thread_{};
};

}  // namespace pitstop::tp_worker
