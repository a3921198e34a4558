// The tensors of a stage that arrive by their rows, in ascending order, over several calls
// (weight_stage.h): one after the other, so that only the last one may be incomplete.
//
// Owns:    what the jobs of a call refer to, until the next call begins.
// Thread:  the stage's.
// Bounded: by the tensors of one call.
#pragma once

#include "base/result.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/shard_writer.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

class RowTensors {
  public:
    // The use of a tensor's rows: they fill the tensor, or are only digested and compared with the
    // tied tensor that filled it.
    enum class Use { kFilled, kCompared };

    // Forgets the tensors that the last call completed.
    void begin_call();
    // Returns whether a tensor has arrived in part.
    [[nodiscard]] bool is_incomplete() const;
    // Returns a text with the tensor's name and the row up to which it has arrived. REQUIRES:
    // is_incomplete().
    [[nodiscard]] std::string what_is_missing() const;
    // Returns the problem of a tensor that arrives whole, if it also arrives by its rows.
    [[nodiscard]] std::optional<std::string> problem_of_whole(std::size_t index) const;

    // The first rows of a tensor are about to arrive. REQUIRES: !is_incomplete(). `tensor` is the
    // layout's, and has this index there.
    void begin(std::string_view name, std::size_t index, const WeightTensor& tensor, Use use);
    // Returns the job that takes these rows. Errors: they are not the next ones.
    [[nodiscard]] Result<FillJob> add(const Incoming& incoming);

    // Calls `f` with the name and index of each tensor that this call completed, and with the
    // digests of those that were only compared (null otherwise).
    template <class F>
    void for_each_complete(F f) const {
        for (const Tensor& each : tensors_) {
            if (&each == &tensors_.back() && is_incomplete()) continue;
            f(each.name, each.index, each.compared ? &*each.compared : nullptr);
        }
    }

  private:
    struct Tensor {
        std::string name{};
        std::size_t index = 0;
        const WeightTensor* whole = nullptr;
        std::int64_t num_arrived = 0;
        std::optional<std::vector<messages::PartDigest>> compared{};
        // The tensor with its parts cut to this call's rows, and their source.
        WeightTensor rows{};
        Incoming incoming{};
    };
    std::deque<Tensor> tensors_{};  // jobs point into its elements
};

}  // namespace pitstop::tp_worker
