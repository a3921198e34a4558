// Writes committed adapters to the directory of --keep-committed, so that a restart can load them
// again although nobody else has their tensors:
//
//   adapter-7/     version 7, in PEFT's form: adapter_config.json, adapter_model.safetensors
//   .adapter-7/    the same while it is written
//
// Each rank writes its shards and, once they are on the disk, a mark. The rank that finds the marks
// of all ranks gives the directory its name. So ranks exchange no messages. Each rank also removes
// a version that no request uses any more and no name serves. When the last rank does so, no other
// rank still writes to it.
//
// Nothing waits for the disk. A failure is a warning in the log, and changes nothing else. A rank
// that fails leaves a mark in place of the files, and other ranks then stop writing.
//
// Thread:  the loop's for keep() and forget(); its own for the work, which rests as stages do.
// Bounded: a job per resident version, and one per version that is forgotten meanwhile.
#pragma once

#include "base/fault_point.h"
#include "base/mutex.h"
#include "base/result.h"
#include "messages/adapters.h"
#include "tp_worker/update/adapter_bytes.h"
#include "tp_worker/weights/pace.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

namespace pitstop::tp_worker {

class AdapterKeeper {
  public:
    struct Args {
        std::string directory{};
        Rank rank{};
        int tp = 1;
        const Pace& pace;
        FaultPoint fault_point;
    };
    explicit AdapterKeeper(Args args);
    // Waits for the current piece.
    ~AdapterKeeper();
    AdapterKeeper(const AdapterKeeper&) = delete;
    AdapterKeeper& operator=(const AdapterKeeper&) = delete;

    // `config`: the text of its adapter_config.json.
    void keep(
        messages::AdapterId id, std::shared_ptr<const AdapterBytes> bytes, std::string config
    );
    // Removes the version's files.
    void forget(messages::AdapterId id);

  private:
    struct Job {
        messages::AdapterId id{};
        std::shared_ptr<const AdapterBytes> bytes{};  // null: the version is to be forgotten
        std::string config{};
    };
    void run();
    Result<> write(const Job& job);
    // Removes the written files, if this rank or another one has failed.
    void clear_failed(messages::AdapterId id, bool has_failed);
    [[nodiscard]] bool has_failed_anywhere(messages::AdapterId id) const;
    // Gives the directory its name if every rank has written its part.
    Result<> seal(messages::AdapterId id);
    [[nodiscard]] Result<> go_on() const;
    [[nodiscard]] std::string path_of(std::string_view prefix, messages::AdapterId id) const;

    Args args_;
    std::atomic<bool> is_cancelled_{false};
    Mutex mutex_{};
    Condition is_changed_{};
    std::deque<Job> jobs_ GUARDED_BY(mutex_){};
    messages::AdapterId current_ GUARDED_BY(mutex_){};
    bool is_over_ GUARDED_BY(mutex_) = false;
    std::thread thread_{};
};

}  // namespace pitstop::tp_worker
