// The worker's side of MoonshotAI's checkpoint-engine: pickles on a REP socket.
//
//   sender                               worker
//   (rebuild function, arguments)        opens the buffer             -> "" or an error's text
//   [{name, dtype, shape, offset}, ...]  reads the tensors, all of it -> "" or an error's text
//   [{name, dtype, shape, offset}, ...]  reads all of the tensors     -> "" or an error's text
//   None                                 closes the buffer            -> ""
//   None                                 (from 0.4.0 on)              -> ""
// or, any time after an answer, a pickled exception: the sender gives up, and expects no answer.
//
// After an error of its own the worker continues to answer until the sender ends the conversation.
// The sender checks for errors only with its next bucket, and a silent worker would hang its whole
// group. Source: checkpoint_engine/worker.py and ps.py at 59a3c4f.
#pragma once

#include "pickle/reader.h"
#include "tp_worker/sources/reply_socket.h"
#include "tp_worker/sources/source.h"
#include "tp_worker/sources/torch_handle.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class CheckpointEngine {
  public:
    CheckpointEngine(const SourceArgs& args, ReplySocket& socket) : args_(args), socket_(socket) {}

    // Receives everything from the sender's first message to its last. Errors: ipc_source.h.
    Result<> run(const std::string& first);
    // Stages nothing: answers the sender's messages with the reason, from the first one on, and
    // gives back the references that they lent. Returns `why`.
    Result<> refuse(const std::string& first, Error why, TimePoint until);

  private:
    enum class Next { kGoOn, kOver };
    Result<> open_buffer(
        const std::string& message, const std::optional<Error>& why_not = std::nullopt
    );
    Result<> open_buffer(const TensorHandle& handle, TorchStorages& storages);
    Result<> stage_bucket(const pickle::Document& document);
    Next handle_message(const std::string& message);
    Result<> converse();
    void answer(const Result<>& result);

    const SourceArgs& args_;
    ReplySocket& socket_;
    std::optional<TorchStorages> storages_{};  // of the single buffer
    StorageBytes buffer_{};                    // in the storage
    std::int64_t buffer_offset_ = 0;           // of the buffer's beginning in its storage
    std::int64_t buffer_bytes_ = 0;
    int num_nones_ = 0;
    std::optional<Error> error_{};  // the first error
    std::optional<TimePoint>
        parting_until_{};  // the update failed, and the sender does not know yet
};

}  // namespace pitstop::tp_worker
