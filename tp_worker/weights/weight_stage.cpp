#include "tp_worker/weights/weight_stage.h"

#include "base/check.h"
#include "base/log.h"
#include "tp_worker/weights/stage_checks.h"
#include "tp_worker/weights/unpack.h"
#include "tp_worker/weights/weight_digest.h"

#include <algorithm>
#include <iterator>

namespace pitstop::tp_worker {

WeightStage::WeightStage(const StageArgs& args) : args_(args), writer_(make_shard_writer(args_)) {
    const std::span<const WeightTensor> tensors = args_.layout.tensors();
    needs_tensor_ = args_.spec.partial;
    states_.assign(tensors.size(), State::kAbsent);
    for (const WeightTensor& tensor : tensors) {
        first_part_.push_back(digests_.size());
        append_parts(tensor, digests_);
    }
}

std::size_t WeightStage::index_of(const WeightTensor& tensor) const {
    return static_cast<std::size_t>(&tensor - args_.layout.tensors().data());
}

std::span<messages::PartDigest> WeightStage::digests_of(std::size_t index) {
    return std::span(digests_).subspan(
        first_part_[index], args_.layout.tensors()[index].parts.size()
    );
}

Result<> WeightStage::fail_with_problems() {
    CHECK(!problems_.empty());
    return Error{ErrorCode::kInvalidArgument, problems_.front()};
}

Result<> WeightStage::begin(std::byte* target) {
    if (target != nullptr) args_.target = target;
    problems_ = problems_of_manifest(args_.layout, args_.spec.manifest);
    return problems_.empty() ? Result<>(Ok{}) : fail_with_problems();
}

void WeightStage::mark_written() {
    if (phase_ == messages::UpdatePhase::kIdle) args_.at("stage_begin");
    phase_ = messages::UpdatePhase::kStaging;
}

// Returns the jobs for these tensors. Tensors that arrived before are only digested and compared.
std::vector<FillJob> WeightStage::jobs_for(
    std::span<const Incoming> tensors, RepeatedTensors& repeated
) {
    std::vector<FillJob> jobs;
    for (const Incoming& incoming : tensors) {
        if (incoming.rows) continue;
        const bool is_head = args_.layout.is_tied_head(incoming.spec.name);
        const WeightTensor* tensor = args_.layout.find_tied(incoming.spec.name);
        if (tensor == nullptr) note_ignored(incoming.spec.name);
        if (tensor == nullptr) continue;
        const std::size_t index = index_of(*tensor);
        const State state = states_[index];
        if (auto problem = by_rows_.problem_of_whole(index)) {
            problems_.push_back(*std::move(problem));
            continue;
        }
        if (is_head && !head_digests_.empty()) {
            jobs.push_back(repeated.add(index, incoming, head_digests_));
        } else if (!is_head && state == State::kArrived) {
            jobs.push_back(repeated.add(index, incoming, digests_of(index)));
        } else if (!is_head && state == State::kSparse) {
            problems_.push_back(fmt::format(
                "'{}' arrived before in this update, as a sparse tensor", incoming.spec.name
            ));
        } else if (!is_head) {
            jobs.push_back({.index = index, .incoming = &incoming});
        }
    }
    return jobs;
}

Result<> WeightStage::stage_tensors(std::span<const Incoming> tensors, Expect expect) {
    std::vector<checkpoint::TensorSpec> offered;
    const Incoming* head = nullptr;  // a tied head that arrives for the first time
    for (const Incoming& incoming : tensors) {
        offered.push_back(incoming.spec);
        const bool is_head = args_.layout.is_tied_head(incoming.spec.name);
        if (is_head && !incoming.rows && head_digests_.empty()) head = &incoming;
    }
    std::ranges::move(scattered_on_gpu(args_.layout, tensors), std::back_inserter(problems_));
    if (!problems_.empty()) return fail_with_problems();
    const std::vector<Incoming> apart = unpacked(args_.layout, tensors);
    RepeatedTensors repeated;
    std::vector<FillJob> jobs = jobs_for_rows(tensors);
    std::ranges::move(jobs_for(apart, repeated), std::back_inserter(jobs));
    // The tensor whose other name is the head's.
    const std::size_t embedding = head == nullptr ? 0 : index_of(*args_.layout.tied());
    const bool fills_embedding =
        head != nullptr && states_[embedding] == State::kAbsent &&
        std::ranges::none_of(jobs, [&](const FillJob& job) { return job.index == embedding; });
    if (fills_embedding) jobs.push_back({.index = embedding, .incoming = head});
    std::vector<std::string> found = find_problems(args_.layout, offered, Completeness::kPartial);
    std::ranges::move(found, std::back_inserter(problems_));
    if (expect == Expect::kAll) {
        std::vector<State> after = states_;
        for (const FillJob& job : jobs) after[job.index] = State::kArrived;
        std::swap(states_, after);
        add_missing();
        std::swap(states_, after);
    }
    if (!problems_.empty()) return fail_with_problems();
    if (tensors.empty()) return Ok{};  // nothing was written
    allow_none();
    mark_written();
    // the tensor arrives, or has arrived, under its other name
    if (head != nullptr && !fills_embedding) {
        append_parts(args_.layout.tensors()[embedding], head_digests_);
        jobs.push_back(
            {.index = embedding, .incoming = head, .parts = head_digests_, .is_only_digested = true}
        );
    }
    for (const FillJob& job : jobs) {
        if (job.is_only_digested || job.rows != nullptr) continue;
        // the embedding replaces the head, whose digest is kept
        if (states_[job.index] == State::kFromHead) {
            for (messages::PartDigest& part : digests_of(job.index)) part.lane0 = part.lane1 = 0;
        }
        states_[job.index] = State::kArrived;
    }
    if (fills_embedding) states_[embedding] = State::kFromHead;
    RETURN_IF_ERROR(fill_all(std::move(jobs), Keep::kCopy));
    if (fills_embedding) {
        const std::span<const messages::PartDigest> filled = digests_of(embedding);
        head_digests_.assign(filled.begin(), filled.end());
    }
    problems_ = repeated.problems();
    compare_tied_rows();
    return problems_.empty() ? Result<>(Ok{}) : fail_with_problems();
}

// ---- tensors that arrive by their rows ----

std::vector<FillJob> WeightStage::jobs_for_rows(std::span<const Incoming> tensors) {
    by_rows_.begin_call();
    std::vector<FillJob> jobs;
    for (const Incoming& incoming : tensors) {
        if (!incoming.rows) continue;
        if (const auto job = job_for_rows(incoming)) jobs.push_back(*job);
    }
    return jobs;
}

// Records that the tensor's first rows have arrived; false: a problem was recorded.
bool WeightStage::begin_rows(std::string_view name, const WeightTensor& tensor) {
    const std::size_t index = index_of(tensor);
    const bool is_head = args_.layout.is_tied_head(name);
    State& state = states_[index];
    if (by_rows_.is_incomplete()) {
        problems_.push_back(fmt::format("{}, but '{}' begins", by_rows_.what_is_missing(), name));
        return false;
    }
    const bool is_there = state == State::kArrived || state == State::kSparse;
    if (is_head ? state == State::kFromHead || !head_digests_.empty() : is_there) {
        problems_.push_back(fmt::format("'{}' arrived before in this update", name));
        return false;
    }
    const bool is_compared = is_head ? is_there : state == State::kFromHead;
    by_rows_.begin(
        name, index, tensor, is_compared ? RowTensors::Use::kCompared : RowTensors::Use::kFilled
    );
    if (!is_head) state = State::kArrived;
    if (is_head && !is_there) state = State::kFromHead;
    return true;
}

// Returns the job that fills these rows; nothing: the model does not use the tensor, or a problem
// was recorded.
std::optional<FillJob> WeightStage::job_for_rows(const Incoming& incoming) {
    const std::string& name = incoming.spec.name;
    const bool is_first = incoming.rows->begin == 0;
    const WeightTensor* const tensor = args_.layout.find_tied(name);
    if (tensor == nullptr) {
        if (args_.layout.find_pack(name) != nullptr)
            problems_.push_back(fmt::format("'{}' contains several weights: send it whole", name));
        if (is_first) note_ignored(name);
        return std::nullopt;
    }
    if (is_first && !begin_rows(name, *tensor)) return std::nullopt;
    Result<FillJob> job = by_rows_.add(incoming);
    if (job) return *std::move(job);
    problems_.push_back(job.error().message);
    return std::nullopt;
}

// Called when the rows of this call are digested. Of two tied tensors, the one that arrived first
// has filled the embedding.
void WeightStage::compare_tied_rows() {
    using Digests = std::vector<messages::PartDigest>;
    by_rows_.for_each_complete([&](const std::string& name,
                                   std::size_t index,
                                   const Digests* compared) {
        if (args_.layout.is_tied_head(name)) {  // finish() compares it
            const std::span<const messages::PartDigest> filled = digests_of(index);
            head_digests_ = compared != nullptr ? *compared : Digests(filled.begin(), filled.end());
        } else if (compared != nullptr && !is_same(*compared, head_digests_)) {
            problems_.push_back(fmt::format(
                "'{}' differs from '{}': this model ties them (tie_word_embeddings is true)",
                args_.layout.head_name(),
                name
            ));
        }
    });
}

void WeightStage::note_ignored(std::string_view name) {
    if (!args_.layout.is_ignored(name)) return;
    if (num_ignored_++ == 0) first_ignored_ = name;
}

std::vector<bool> WeightStage::absent() const {
    std::vector<bool> absent;
    for (const State state : states_) absent.push_back(state == State::kAbsent);
    return absent;
}

// Adds a problem for each tensor that this update should have sent and did not.
void WeightStage::add_missing() {
    if (!args_.spec.partial) {
        for (const WeightTensor* const tensor : find_missing(args_.layout, absent()))
            problems_.push_back(fmt::format("'{}' is missing", tensor->name));
    }
    for (const messages::TensorInfo& declared : args_.spec.manifest) {
        const WeightTensor* tensor = args_.layout.find(declared.name);
        if (tensor == nullptr || states_[index_of(*tensor)] != State::kAbsent) continue;
        problems_.push_back(fmt::format("'{}' is declared and did not arrive", declared.name));
    }
}

Result<> WeightStage::stage_shard(std::span<const std::byte> bytes, Shard shard) {
    std::vector<FillJob> jobs;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] != State::kAbsent) {
            problems_.push_back(
                fmt::format("'{}' arrived before in this update", args_.layout.tensors()[i].name)
            );
        }
        jobs.push_back({.index = i});
    }
    for (const WeightTensor& tensor : args_.layout.tensors()) {
        if (auto problem = problem_of_padding(tensor, bytes))
            problems_.push_back(*std::move(problem));
    }
    if (!problems_.empty()) return fail_with_problems();
    allow_none();
    mark_written();
    states_.assign(states_.size(), State::kArrived);
    num_tensors_ = static_cast<std::int64_t>(states_.size());
    for (std::size_t i = 0; i < states_.size(); ++i) args_.target_ledger.forget(i);
    if (shard == Shard::kToCopy) {
        const TimePoint begun = Clock::now();
        const Result<Duration> rest = writer_->fill_target(bytes);
        if (!rest) return rest.error();
        times_.add_receive(Clock::now() - begun, *rest);
    }
    return fill_all(std::move(jobs), Keep::kInPlace);
}

Result<> WeightStage::finish() {
    if (needs_tensor_) problems_.push_back(problem_of_empty(args_.spec.adapter));
    if (by_rows_.is_incomplete()) problems_.push_back(by_rows_.what_is_missing());
    add_missing();
    if (!problems_.empty()) return fail_with_problems();
    mark_written();
    std::vector<FillJob> scattered;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] == State::kSparse) scattered.push_back({.index = i});
    }
    RETURN_IF_ERROR(fill_all(std::move(scattered), Keep::kInPlace));
    RETURN_IF_ERROR(keep_others());
    check_tied();
    if (!problems_.empty()) return fail_with_problems();
    if (num_ignored_ > 0 && raw(args_.rank) == 0) {
        spdlog::warn(
            "{} tensor(s) of the update that this model does not use are ignored, the first '{}'",
            num_ignored_,
            printable(first_ignored_)
        );
    }
    if (!args_.spec.partial && raw(args_.rank) == 0)
        warn_of_left_out(args_.layout, absent(), args_.spec.adapter);
    phase_ = messages::UpdatePhase::kPrepared;
    return Ok{};
}

// Returns whether the target already contains the live version of the tensor, with a valid digest.
bool WeightStage::is_there(std::size_t tensor) const {
    const CopyLedger::Entry* const there = args_.target_ledger.find(tensor);
    const CopyLedger::Entry* const live = args_.live_ledger.find(tensor);
    return there != nullptr && live != nullptr && there->writing == live->writing;
}

// Fills in the tensors that did not arrive: copies them from the live version and digests them,
// unless the target already has them.
Result<> WeightStage::keep_others() {
    std::vector<FillJob> jobs;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] != State::kAbsent) continue;
        if (is_there(i) && (args_.target_ledger.find(i)->is_finite || args_.spec.allow_nonfinite)) {
            const std::vector<Digest>& known = args_.target_ledger.find(i)->parts;
            const std::span<messages::PartDigest> parts = digests_of(i);
            for (std::size_t part = 0; part < parts.size(); ++part) {
                parts[part].lane0 = known[part].lane0;
                parts[part].lane1 = known[part].lane1;
            }
        } else {
            jobs.push_back({.index = i});
        }
    }
    return fill_all(std::move(jobs), Keep::kCopy);
}

// Records that the tensor is in place and digested. A kept tensor is recorded as a copy of
// the live one.
void WeightStage::record(std::size_t tensor) {
    const auto values =
        args_.spec.allow_nonfinite ? CopyLedger::Values::kNotLookedAt : CopyLedger::Values::kFinite;
    if (states_[tensor] != State::kAbsent) {
        args_.target_ledger.record(tensor, values, digests_of(tensor));
        return;
    }
    args_.live_ledger.record(tensor, values, digests_of(tensor));
    if (args_.target != args_.live) args_.target_ledger.record_copy(tensor, args_.live_ledger);
}

// Checks that a head sent in addition to the embedding equals it, because the head is not stored.
void WeightStage::check_tied() {
    if (auto problem =
            problem_of_tied_counts(args_.layout, num_sparse_head_, num_sparse_embedding_))
        problems_.push_back(*std::move(problem));
    if (head_digests_.empty()) return;
    const WeightTensor& embedding = *args_.layout.tied();
    if (is_same(head_digests_, digests_of(index_of(embedding)))) return;
    problems_.push_back(fmt::format(
        "'{}' differs from '{}': this model ties them (tie_word_embeddings is true)",
        args_.layout.head_name(),
        embedding.name
    ));
}

Result<> WeightStage::fill_all(std::vector<FillJob> jobs, Keep keep) {
    std::vector<std::size_t> written;
    for (FillJob& job : jobs) {
        if (job.is_only_digested) continue;
        job.parts = digests_of(job.index);
        args_.target_ledger.forget(job.index);
        if (job.is_last) written.push_back(job.index);
    }
    Filled filled = writer_->fill(std::move(jobs), keep);
    num_tensors_ += filled.num_tensors;
    bytes_ += filled.bytes;
    times_.add(filled);
    for (auto& [index, problem] : filled.problems) problems_.push_back(std::move(problem));
    if (filled.error) return std::move(filled.error->second);
    if (!problems_.empty()) return fail_with_problems();
    for (const std::size_t tensor : written) record(tensor);
    return Ok{};
}

Result<> WeightStage::stage_sparse(std::span<const SparseTensor> tensors) {
    std::vector<checkpoint::TensorSpec> offered;
    for (const SparseTensor& sparse : tensors) {
        offered.push_back(sparse.spec);
        if (args_.layout.find_pack(sparse.spec.name) != nullptr) {
            problems_.push_back(fmt::format(
                "'{}' contains several weights: send a sparse update of each", sparse.spec.name
            ));
        }
        const WeightTensor* tensor = args_.layout.find(sparse.spec.name);
        if (tensor == nullptr) continue;
        if (states_[index_of(*tensor)] == State::kArrived) {
            problems_.push_back(
                fmt::format("'{}' has already arrived whole in this update", sparse.spec.name)
            );
        }
    }
    std::vector<std::string> found = find_problems(args_.layout, offered, Completeness::kPartial);
    std::ranges::move(found, std::back_inserter(problems_));
    for (const SparseTensor& sparse : tensors) {
        if (!problems_.empty()) break;  // the code below relies on the model's shapes
        if (auto problem = problem_of_indices(sparse)) problems_.push_back(*std::move(problem));
    }
    if (!problems_.empty()) return fail_with_problems();
    allow_none();
    mark_written();
    for (const SparseTensor& sparse : tensors) {
        const WeightTensor* tensor = args_.layout.find_tied(sparse.spec.name);
        if (tensor == nullptr) note_ignored(sparse.spec.name);
        if (tensor == nullptr) continue;
        RETURN_IF_ERROR(
            args_.layout.is_tied(*tensor) ? stage_tied(sparse, *tensor) : scatter(sparse, *tensor)
        );
    }
    return Ok{};
}

// Elements under the name that arrives first are scattered. Elements under the other name must
// equal the resident ones.
Result<> WeightStage::stage_tied(const SparseTensor& sparse, const WeightTensor& embedding) {
    const std::string_view head_name = args_.layout.head_name();
    const bool is_head = sparse.spec.name == head_name;
    (is_head ? num_sparse_head_ : num_sparse_embedding_) += sparse.num;
    const bool is_first = tied_sparse_.empty() && states_[index_of(embedding)] == State::kAbsent;
    const std::string_view name = is_head ? head_name : std::string_view(embedding.name);
    if (is_first) tied_sparse_ = name;
    if (name == tied_sparse_) return scatter(sparse, embedding);
    const std::int64_t num_other =
        writer_->count_different(embedding, elements_here(sparse, embedding));
    if (num_other == 0) return Ok{};
    problems_.push_back(fmt::format(
        "'{}': {} updates differ from '{}', which came before: this model ties them "
        "(tie_word_embeddings is true)",
        sparse.spec.name,
        num_other,
        is_head ? std::string_view(embedding.name) : head_name
    ));
    return fail_with_problems();
}

// finish() digests the rows later, because more updates of the same tensor may follow.
Result<> WeightStage::scatter(const SparseTensor& sparse, const WeightTensor& tensor) {
    const TimePoint begun = Clock::now();
    State& state = states_[index_of(tensor)];
    if (state == State::kAbsent && !is_there(index_of(tensor)) && args_.target != args_.live)
        writer_->copy_live(tensor);
    args_.target_ledger.forget(index_of(tensor));
    state = State::kSparse;
    ++num_tensors_;
    writer_->write(tensor, elements_here(sparse, tensor));
    times_.add_receive(Clock::now() - begun);
    if (is_dropped()) return make_error(ErrorCode::kAborted, "the stage was dropped");
    return Ok{};
}

messages::RankOutcome WeightStage::outcome(const Result<>& result) const {
    messages::RankOutcome outcome;
    outcome.rank = args_.rank;
    outcome.ok = result.has_value();
    outcome.phase = phase_;
    outcome.bytes = bytes_;
    outcome.tensors = num_tensors_;
    const bool is_open = args_.layout.is_of_adapter() == !args_.spec.adapter.empty();
    if (is_open && !args_.spec.partial && args_.spec.source.kind == messages::SourceKind::kBuckets)
        report_missing(find_missing(args_.layout, absent()), outcome);
    outcome.stage = times_.seconds_of_each();
    if (!result) report(result.error(), problems_, outcome);
    return outcome;
}

messages::WorkerStaged WeightStage::vote(const Result<>& result) const {
    messages::WorkerStaged vote;
    vote.update = args_.update;
    vote.outcome = outcome(result);
    if (!result) return vote;
    vote.digests = digests_;
    vote.declared = other_names(args_.layout, args_.spec.manifest);
    return vote;
}

}  // namespace pitstop::tp_worker
