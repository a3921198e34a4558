// The places of a tree's sockets: one private directory (mode 0700) per tree.
//
//   data.sock admin.sock     the doors            (tokenizer_proc binds)
//   tokenizer.sock           inbox                (tokenizer_proc binds; schedulers, detokenizer)
//   detokenizer.sock         inbox                (detokenizer_proc binds; schedulers)
//   requests-R.sock          generation, replica R    (scheduler_proc binds; tokenizer)
//   control-R.sock           control, replica R       (scheduler_proc binds; tokenizer)
//   workers-R.sock           plans and results        (scheduler_proc binds; tp_worker)
#pragma once

#include "base/ids.h"
#include "base/result.h"

#include <string>
#include <string_view>

namespace pitstop::bus {

class RunDir {
  public:
    // Errors: not a directory, not ours, open to other users, or a path too long for a unix socket.
    static Result<RunDir> open(const std::string& path);

    // ZeroMQ endpoints: "ipc:///run/.../data.sock".
    [[nodiscard]] std::string data_door() const { return endpoint("data"); }
    [[nodiscard]] std::string admin_door() const { return endpoint("admin"); }
    [[nodiscard]] std::string tokenizer() const { return endpoint("tokenizer"); }
    [[nodiscard]] std::string detokenizer() const { return endpoint("detokenizer"); }
    [[nodiscard]] std::string requests(ReplicaId replica) const;
    [[nodiscard]] std::string control(ReplicaId replica) const;
    [[nodiscard]] std::string workers(ReplicaId replica) const;

    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    explicit RunDir(std::string path) : path_(std::move(path)) {}
    [[nodiscard]] std::string endpoint(std::string_view name) const;

    std::string path_;
};

}  // namespace pitstop::bus
