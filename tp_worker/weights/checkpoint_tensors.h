// Says which tensors of a checkpoint directory fill a model, at a start and in an update from disk:
// most by their name; in a tied model the head may stand for the embedding; what other programs
// keep beside a model, a value head say, is left out.
//
// Source: how transformers 5.23 loads (modeling_utils.py, tie_weights): tensors that it does not
//         expect are warned of, tied weights are tied to whichever of the two is there, and not at
//         all where both are there and differ. The last is refused here: what served would hang on
//         the version of transformers that the trainer uses.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/weights/weight_layout.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

class CheckpointTensors {
  public:
    // Both outlive it.
    CheckpointTensors(const WeightLayout& layout, const checkpoint::Checkpoint& checkpoint);

    // Returns what is offered to the model, as find_problems() wants it.
    [[nodiscard]] const std::vector<const checkpoint::StoredTensor*>& offered() const {
        return offered_;
    }
    // kInvalidArgument lists everything that keeps these from being the whole model; `source` is
    // for the message. Reads the head of a tied model, if it is there: this rank's rows.
    Result<> check_whole(const std::string& source) const;
    // REQUIRES: check_whole() found nothing. Null: the layout has no such tensor.
    [[nodiscard]] const checkpoint::StoredTensor* find(std::string_view name) const;

    // Says what whoever serves the model should know, a line each: what is left out, and what is
    // rounded to bf16, which resident weights are.
    [[nodiscard]] std::vector<std::string> notes() const;

    [[nodiscard]] const checkpoint::Checkpoint& checkpoint() const { return checkpoint_; }

  private:
    [[nodiscard]] const checkpoint::StoredTensor* find_stored(std::string_view name) const;
    void unpack(const checkpoint::StoredTensor& stored);
    Result<> check_tied_head(const std::string& source) const;

    const WeightLayout& layout_;
    const checkpoint::Checkpoint& checkpoint_;
    std::vector<const checkpoint::StoredTensor*> offered_{};
    std::vector<std::string_view> left_out_{};
    std::map<std::string, checkpoint::StoredTensor, std::less<>> unpacked_{};  // what packs hold
    // Those that a file has under another name of the tensor's, by its own.
    std::map<std::string_view, const checkpoint::StoredTensor*> renamed_{};
};

}  // namespace pitstop::tp_worker
