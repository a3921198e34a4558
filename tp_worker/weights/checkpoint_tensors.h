// Selects the tensors of a checkpoint directory that fill a model, at the start and in an update
// from disk. Most match by name. In a tied model the head may replace the embedding. Tensors of
// other programs, such as a value head, are left out.
//
// Source: transformers 5.23 (modeling_utils.py, tie_weights): it warns of unexpected tensors, ties
// weights to whichever of the two exists, and does not tie them if both exist and differ. If both
// differ, the checkpoint is refused here: the result would depend on the trainer's version of
// transformers.
#pragma once

#include "base/result.h"
#include "base/string_map.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/weights/tensor_bytes.h"
#include "tp_worker/weights/weight_layout.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pitstop::tp_worker {

class CheckpointTensors {
  public:
    // Both must outlive this object.
    CheckpointTensors(const WeightLayout& layout, const checkpoint::Checkpoint& checkpoint);

    // Returns the tensors that are offered to the model, in the form that find_problems() needs.
    [[nodiscard]] const std::vector<const checkpoint::StoredTensor*>& offered() const {
        return offered_;
    }
    // kInvalidArgument lists everything that keeps these tensors from being the whole model;
    // `source` is for the message. Reads this rank's rows of a tied model's head, if the
    // checkpoint has one.
    Result<> check_whole(const std::string& source) const;
    // Returns the bytes of a tensor of the layout. Borrows this object. REQUIRES: check_whole()
    // found nothing.
    [[nodiscard]] TensorBytes bytes_for(std::string_view name) const;

    // Returns notes for the operator, one line each: which tensors are left out, and which are
    // rounded to bf16, the resident form.
    [[nodiscard]] std::vector<std::string> notes() const;

  private:
    [[nodiscard]] const checkpoint::StoredTensor* find_stored(std::string_view name) const;
    Result<> check_tied_head(const std::string& source) const;

    const WeightLayout& layout_;
    const checkpoint::Checkpoint& checkpoint_;
    std::vector<const checkpoint::StoredTensor*> offered_{};
    std::vector<std::string_view> left_out_{};
    StringMap<TensorBytes> unpacked_{};  // the contents of packs
    // Tensors that a file has under another accepted name, by the model's name for them.
    std::unordered_map<std::string_view, const checkpoint::StoredTensor*> renamed_{};
};

}  // namespace pitstop::tp_worker
