// A stage's tensors that arrive by their rows, over several calls (weight_stage.h).
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_stage.h"

#include <utility>

namespace pitstop::tp_worker {

// Returns whether a tensor has arrived in part.
bool WeightStage::lacks_rows() const {
    if (by_rows_.empty()) return false;
    const ByRows& last = by_rows_.back();
    return last.num_arrived < args_.layout.tensors()[last.index].whole_rows;
}

// REQUIRES: lacks_rows().
std::string WeightStage::missing_rows() const {
    const ByRows& last = by_rows_.back();
    return fmt::format(
        "'{}' has arrived up to row {} of {}",
        last.name,
        last.num_arrived,
        args_.layout.tensors()[last.index].whole_rows
    );
}

std::vector<FillJob> WeightStage::jobs_for_rows(std::span<const Incoming> tensors) {
    const std::size_t num_left = lacks_rows() ? 1 : 0;
    while (by_rows_.size() > num_left) by_rows_.pop_front();
    std::vector<FillJob> jobs;
    for (const Incoming& incoming : tensors) {
        if (!incoming.rows) continue;
        if (const auto job = job_for_rows(incoming)) jobs.push_back(*job);
    }
    return jobs;
}

// Returns whether the tensor, or the one tied to it, arrives by its rows in this call or is
// incomplete. Records a problem if so.
bool WeightStage::comes_by_rows(std::size_t index) {
    for (const ByRows& each : by_rows_) {
        if (each.index != index) continue;
        problems_.push_back(
            lacks_rows() ? missing_rows()
                         : fmt::format("'{}' was sent both whole and by its rows", each.name)
        );
        return true;
    }
    return false;
}

// Records that the tensor's first rows have arrived; false: a problem was recorded.
bool WeightStage::begin_rows(std::string_view name, const WeightTensor& tensor) {
    const std::size_t index = index_of(tensor);
    const bool is_head = args_.layout.is_tied_head(name);
    State& state = states_[index];
    if (lacks_rows()) {
        problems_.push_back(fmt::format("{}, but '{}' begins", missing_rows(), name));
        return false;
    }
    const bool is_there = state == State::kArrived || state == State::kSparse;
    if (is_head ? state == State::kFromHead || !head_digests_.empty() : is_there) {
        problems_.push_back(fmt::format("'{}' arrived before in this update", name));
        return false;
    }
    ByRows& begun = by_rows_.emplace_back();
    begun.name = name;
    begun.index = index;
    if (is_head ? is_there : state == State::kFromHead)
        append_parts(tensor, begun.compared.emplace());
    if (!is_head) state = State::kArrived;
    if (is_head && !is_there) state = State::kFromHead;
    return true;
}

// Returns the job that fills these rows; nothing: the model does not use the tensor, or a problem
// was recorded.
std::optional<FillJob> WeightStage::job_for_rows(const Incoming& incoming) {
    const std::string& name = incoming.spec.name;
    const auto [begin, num] = *incoming.rows;
    const WeightTensor* const tensor = args_.layout.find_tied(name);
    if (tensor == nullptr) {
        if (args_.layout.find_pack(name) != nullptr)
            problems_.push_back(fmt::format("'{}' contains several weights: send it whole", name));
        if (begin == 0) note_ignored(name);
        return std::nullopt;
    }
    if (begin == 0 && !begin_rows(name, *tensor)) return std::nullopt;
    const bool is_next = !by_rows_.empty() && by_rows_.back().name == name &&
                         by_rows_.back().num_arrived == begin && num >= 1 &&
                         num <= tensor->whole_rows - begin;
    if (!is_next) {
        problems_.push_back(
            fmt::format("'{}': {} rows from row {} on arrived out of order", name, num, begin)
        );
        return std::nullopt;
    }
    ByRows& now = by_rows_.back();
    now.num_arrived += num;
    now.rows = *tensor;
    for (ShardPart& part : now.rows.parts) part = part.in_whole_rows(begin, num);
    now.incoming = incoming;
    now.incoming.bytes.data -= begin * tensor->whole_cols * bytes_of(incoming.spec.dtype);
    return FillJob{
        .index = now.index,
        .incoming = &now.incoming,
        .parts = now.compared ? std::span(*now.compared) : std::span<messages::PartDigest>(),
        .is_only_digested = now.compared.has_value(),
        .rows = &now.rows,
        .is_last = now.num_arrived == tensor->whole_rows};
}

// Called when the rows of this call are digested. Of two tied tensors, the one that arrived first
// has filled the embedding.
void WeightStage::compare_tied_rows() {
    for (const ByRows& each : by_rows_) {
        const bool is_over = &each != &by_rows_.back() || !lacks_rows();
        const bool is_head = args_.layout.is_tied_head(each.name);
        if (!is_over) continue;
        if (is_head && each.compared) head_digests_ = *each.compared;  // finish() compares them
        if (is_head && !each.compared) {
            const std::span<const messages::PartDigest> filled = digests_of(each.index);
            head_digests_.assign(filled.begin(), filled.end());
        }
        if (is_head || !each.compared || is_same(*each.compared, head_digests_)) continue;
        problems_.push_back(fmt::format(
            "'{}' differs from '{}': this model ties them (tie_word_embeddings is true)",
            args_.layout.head_name(),
            each.name
        ));
    }
}

}  // namespace pitstop::tp_worker
