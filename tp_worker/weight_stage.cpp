#include "tp_worker/weight_stage.h"

#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tp_worker/weight_digest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>

namespace pitstop {
namespace {

constexpr auto kElementBytes = static_cast<std::int64_t>(sizeof(bf16));

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// What filling came to, on one thread.
struct Filled {
    std::int64_t num_tensors = 0;
    std::int64_t bytes = 0;
    Duration receive{};
    Duration verify{};
    std::vector<std::pair<std::size_t, std::string>> problems{};  // of the tensor with this index
    std::optional<std::pair<std::size_t, Error>> error{};         // that ended the work

    [[nodiscard]] Duration busy() const { return receive + verify; }
};

// Fills tensors on one thread, one after the other.
class TensorFiller {
  public:
    explicit TensorFiller(const StageArgs& args) : args_(args), pacer_(args.pace) {}

    // `incoming` null: the tensor is kept, from the live copy or (kInPlace) where it is.
    // `parts`: the entries of the tensor's parts, their lanes zero. False: the stage is over.
    bool fill(
        std::size_t index, const Incoming* incoming, bool is_in_place, std::span<PartDigest> parts
    ) {
        index_ = index;
        parts_ = parts;
        is_nonfinite_ = false;
        const WeightTensor& tensor = args_.layout.tensors()[index];
        piece_begun_ = Clock::now();
        Result<> result =
            incoming == nullptr ? keep(tensor, is_in_place) : load(tensor, incoming->bytes);
        if (!result) filled_.error = {index, std::move(result.error())};
        return !filled_.error;
    }
    [[nodiscard]] const Filled& filled() const { return filled_; }

  private:
    Result<> load(const WeightTensor& tensor, const TensorBytes& bytes) {
        ++filled_.num_tensors;
        return load_tensor(
            {.tensor = tensor,
             .bytes = bytes,
             .ops = args_.ops,
             .arena = args_.target,
             .parts = parts_,
             .add_run = args_.add_run},
            scratch_,
            [&](const WrittenRows& rows) { return written(tensor, rows); }
        );
    }

    // A partial update leaves it as it is: in the staged copy a copy of the live one.
    Result<> keep(const WeightTensor& tensor, bool is_in_place) {
        const std::int64_t rows_max =
            std::max<std::int64_t>(1, kChunkBytes / (tensor.cols * kElementBytes));
        for (std::int64_t row = 0; row < tensor.rows; row += rows_max) {
            WrittenRows rows{.begin = row, .num = std::min(rows_max, tensor.rows - row)};
            rows.num_nonfinite = is_in_place || args_.target == args_.live
                                     ? digest(tensor, rows)
                                     : copy_live(tensor, rows);
            RETURN_IF_ERROR(written(tensor, rows));
        }
        return Ok{};
    }
    std::uint64_t copy_live(const WeightTensor& tensor, const WrittenRows& rows) {
        return copy_rows_and_digest(
            {.tensor = tensor,
             .from = RowsFrom::kShard,
             .src = args_.live,
             .arena = args_.target,
             .row_begin = rows.begin,
             .num_rows = rows.num,
             .add_run = args_.add_run},
            parts_
        );
    }
    std::uint64_t digest(const WeightTensor& tensor, const WrittenRows& rows) {
        const TimePoint begun = Clock::now();
        const std::uint64_t num_nonfinite = add_rows_digest(
            {.tensor = tensor,
             .arena = args_.target,
             .row_begin = rows.begin,
             .num_rows = rows.num,
             .ops = args_.ops},
            parts_
        );
        verify_now_ = Clock::now() - begun;
        return num_nonfinite;
    }

    // Rows of the shard are in their place, and digested.
    Result<> written(const WeightTensor& tensor, const WrittenRows& rows) {
        const Duration verify = std::exchange(verify_now_, Duration{});
        filled_.verify += verify;
        filled_.receive += Clock::now() - piece_begun_ - verify;
        filled_.bytes += rows.num * tensor.cols * kElementBytes;
        if (rows.num_nonfinite != 0 && !args_.spec.allow_nonfinite)
            report_nonfinite(tensor, rows.begin, rows.num);
        pacer_.rest_if_due();
        if (args_.is_dropped.load(std::memory_order_relaxed))
            return make_error(ErrorCode::kAborted, "the stage was dropped");
        piece_begun_ = Clock::now();
        return Ok{};
    }

    // Which one: rows [begin, begin + num) of the shard have at least one.
    void report_nonfinite(const WeightTensor& tensor, std::int64_t begin, std::int64_t num) {
        if (is_nonfinite_) return;  // one report a tensor
        is_nonfinite_ = true;
        const auto* rows =
            reinterpret_cast<const bf16*>(args_.target + tensor.offset) + begin * tensor.cols;
        std::int64_t index = 0;
        while (index + 1 < num * tensor.cols && std::isfinite(to_float(rows[index]))) ++index;
        filled_.problems.emplace_back(
            index_,
            fmt::format(
                "'{}' is not finite: {} at row {}, column {} of this rank's shard (allow_nonfinite "
                "would accept it)",
                tensor.name,
                to_float(rows[index]),
                begin + index / tensor.cols,
                index % tensor.cols
            )
        );
    }

    const StageArgs& args_;
    Pacer pacer_;
    Filled filled_{};
    std::size_t index_ = 0;          // of the tensor being filled
    std::span<PartDigest> parts_{};  // its
    bool is_nonfinite_ = false;      // and that was said
    std::vector<std::byte> scratch_{};
    TimePoint piece_begun_{};
    Duration verify_now_{};  // of the piece under way, what digesting took apart from copying
};

bf16 bf16_from(StoredDtype dtype, const std::byte* at) {
    if (dtype == StoredDtype::kF32) {
        float value = 0;
        std::memcpy(&value, at, sizeof value);
        return to_bf16(value);
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    return dtype == StoredDtype::kF16 ? to_bf16(to_float(f16{bits})) : bf16{bits};
}

// The whole model's tensors that this update did not bring, as find_problems wants them.
TensorSpec spec_of(const WeightTensor& tensor) {
    return {.name = tensor.name, .dtype = StoredDtype::kBf16, .shape = tensor.shape};
}

}  // namespace

WeightStage::WeightStage(const StageArgs& args) : args_(args) {
    const std::span<const WeightTensor> tensors = args_.layout.tensors();
    states_.assign(tensors.size(), State::kAbsent);
    for (const WeightTensor& tensor : tensors) {
        first_part_.push_back(digests_.size());
        append_parts(tensor, digests_);
    }
}

std::size_t WeightStage::index_of(const WeightTensor& tensor) const {
    return static_cast<std::size_t>(&tensor - args_.layout.tensors().data());
}

Result<> WeightStage::fail_with_problems() {
    CHECK(!problems_.empty());
    return Error{ErrorCode::kInvalidArgument, problems_.front()};
}

// The model and what was declared: before anything arrives.
Result<> WeightStage::begin() {
    for (const TensorInfo& declared : args_.spec.manifest) check_declared(declared);
    for (const WeightTensor& tensor : args_.layout.tensors()) {
        if (!tensor.cuts_words) continue;
        problems_.push_back(fmt::format(
            "'{}': the ranks' parts of its rows do not end between words of the digest", tensor.name
        ));
    }
    return problems_.empty() ? Result<>(Ok{}) : fail_with_problems();
}

void WeightStage::check_declared(const TensorInfo& declared) {
    const WeightTensor* tensor = args_.layout.find(declared.name);
    if (tensor == nullptr) {
        if (args_.layout.is_ignored(declared.name)) return;
        problems_.push_back(
            fmt::format("'{}' is declared and is no tensor of this model", declared.name)
        );
        return;
    }
    if (!declared.shape.empty() && declared.shape != tensor->shape) {
        problems_.push_back(fmt::format(
            "'{}' is declared as {}; the model has {}",
            declared.name,
            text_of(declared.shape),
            text_of(tensor->shape)
        ));
    }
    if (!declared.dtype.empty() && declared.dtype != "BF16") {
        problems_.push_back(fmt::format(
            "'{}' is declared as {}; resident weights are BF16", declared.name, declared.dtype
        ));
    }
}

void WeightStage::mark_written() {
    if (phase_ == "idle") args_.at("stage_begin");
    phase_ = "stage";
}

Result<> WeightStage::take(std::span<const Incoming> tensors, Expect expect) {
    std::vector<TensorSpec> offered;
    std::vector<Job> jobs;
    for (const Incoming& incoming : tensors) {
        offered.push_back(incoming.spec);
        const WeightTensor* tensor = args_.layout.find(incoming.spec.name);
        if (tensor == nullptr) continue;
        if (states_[index_of(*tensor)] != State::kAbsent) {
            problems_.push_back(
                fmt::format("'{}' arrived before in this update", incoming.spec.name)
            );
        }
        jobs.push_back({index_of(*tensor), &incoming});
    }
    std::vector<std::string> found = find_problems(args_.layout, offered, Completeness::kPartial);
    std::ranges::move(found, std::back_inserter(problems_));
    if (expect == Expect::kAll) {
        std::vector<State> after = states_;
        for (const Job& job : jobs) after[job.index] = State::kArrived;
        std::swap(states_, after);
        add_missing();
        std::swap(states_, after);
    }
    if (!problems_.empty()) return fail_with_problems();
    mark_written();
    for (const Job& job : jobs) states_[job.index] = State::kArrived;
    return fill_all(std::move(jobs), Keep::kCopy);
}

// What this update should have brought and did not.
void WeightStage::add_missing() {
    if (!args_.spec.partial) {
        std::vector<TensorSpec> there;
        for (const WeightTensor& tensor : args_.layout.tensors()) {
            if (states_[index_of(tensor)] != State::kAbsent) there.push_back(spec_of(tensor));
        }
        std::vector<std::string> missing = find_problems(args_.layout, there, Completeness::kWhole);
        std::ranges::move(missing, std::back_inserter(problems_));
    }
    for (const TensorInfo& declared : args_.spec.manifest) {
        const WeightTensor* tensor = args_.layout.find(declared.name);
        if (tensor == nullptr || states_[index_of(*tensor)] != State::kAbsent) continue;
        problems_.push_back(fmt::format("'{}' is declared and did not arrive", declared.name));
    }
}

Result<> WeightStage::take_target() {
    std::vector<Job> jobs;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] != State::kAbsent) {
            problems_.push_back(
                fmt::format("'{}' arrived before in this update", args_.layout.tensors()[i].name)
            );
        }
        jobs.push_back({i, nullptr});
    }
    for (const WeightTensor& tensor : args_.layout.tensors()) check_padding(tensor);
    if (!problems_.empty()) return fail_with_problems();
    mark_written();
    states_.assign(states_.size(), State::kArrived);
    num_tensors_ = static_cast<std::int64_t>(states_.size());
    return fill_all(std::move(jobs), Keep::kInPlace);
}

// Rows that belong to no part are zero in a copy of ours; here somebody else laid them out.
void WeightStage::check_padding(const WeightTensor& tensor) {
    if (tensor.axis != SplitAxis::kRows) return;
    std::int64_t num_rows = 0;
    for (const ShardPart& part : tensor.parts) num_rows += part.num;
    const std::byte* begin = args_.target + tensor.offset + num_rows * tensor.cols * kElementBytes;
    const std::byte* end = args_.target + tensor.offset + tensor.bytes();
    if (std::all_of(begin, end, [](std::byte byte) { return byte == std::byte{0}; })) return;
    problems_.push_back(fmt::format(
        "'{}': its padding, from row {} of the shard on, is not zero", tensor.name, num_rows
    ));
}

Result<> WeightStage::finish() {
    add_missing();
    if (!problems_.empty()) return fail_with_problems();
    mark_written();
    std::vector<Job> kept;
    std::vector<Job> scattered;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] == State::kAbsent) kept.push_back({i, nullptr});
        if (states_[i] == State::kSparse) scattered.push_back({i, nullptr});
    }
    RETURN_IF_ERROR(fill_all(std::move(scattered), Keep::kInPlace));
    RETURN_IF_ERROR(fill_all(std::move(kept), Keep::kCopy));
    phase_ = "prepared";
    return Ok{};
}

TaskPool& WeightStage::threads() {
    if (!threads_) threads_.emplace(args_.num_threads);
    return *threads_;
}

// Tensors are claimed by the threads one at a time, the largest first. The first thread always
// works; the others are there for the time when no pass runs.
Result<> WeightStage::fill_all(std::vector<Job> jobs, Keep keep) {
    const std::span<const WeightTensor> tensors = args_.layout.tensors();
    const auto elements = [&](const Job& job) {
        return tensors[job.index].rows * tensors[job.index].cols;
    };
    std::ranges::stable_sort(jobs, [&](const Job& a, const Job& b) {
        return elements(a) > elements(b);
    });
    std::int64_t num_elements = 0;
    for (const Job& job : jobs) num_elements += elements(job);
    // To wake a thread costs some 10 us: a tenth of what 1 MiB takes.
    constexpr std::int64_t kElementsPerThread = 512 << 10;
    const std::int64_t num_threads_max =
        std::clamp<std::int64_t>(std::ssize(jobs), 1, std::max(1, args_.num_threads));
    const auto num_threads = static_cast<std::size_t>(
        std::clamp<std::int64_t>(num_elements / kElementsPerThread, 1, num_threads_max)
    );
    std::atomic<std::size_t> num_claimed{0};
    std::atomic<bool> is_over{false};
    std::vector<Filled> filled(num_threads);
    const auto work = [&](std::size_t thread) {
        constexpr auto kLook = std::chrono::milliseconds(10);
        TensorFiller filler(args_);
        while (!is_over.load(std::memory_order_relaxed)) {
            if (thread != 0 && args_.pace.is_serving()) {
                if (num_claimed.load(std::memory_order_relaxed) >= jobs.size()) break;
                std::this_thread::sleep_for(kLook);
                continue;
            }
            const std::size_t claim = num_claimed.fetch_add(1, std::memory_order_relaxed);
            if (claim >= jobs.size()) break;
            if (claim == jobs.size() / 2) args_.at("stage_half");
            const Job& job = jobs[claim];
            const std::span<PartDigest> parts = std::span(digests_).subspan(
                first_part_[job.index], tensors[job.index].parts.size()
            );
            if (!filler.fill(job.index, job.incoming, keep == Keep::kInPlace, parts))
                is_over.store(true, std::memory_order_relaxed);
        }
        filled[thread] = filler.filled();
        return Result<>(Ok{});
    };
    if (num_threads == 1) {
        static_cast<void>(work(0));
    } else {
        static_cast<void>(threads().run(num_threads, work));
    }

    // Problems and errors in the tensors' order. The seconds are those of the thread that was busy
    // longest, divided as all threads' were.
    Duration receive{}, verify{}, longest{};
    std::vector<std::pair<std::size_t, std::string>> problems;
    std::optional<std::pair<std::size_t, Error>> error;
    for (Filled& of_thread : filled) {
        num_tensors_ += of_thread.num_tensors;
        bytes_ += of_thread.bytes;
        receive += of_thread.receive;
        verify += of_thread.verify;
        longest = std::max(longest, of_thread.busy());
        std::ranges::move(of_thread.problems, std::back_inserter(problems));
        if (of_thread.error && (!error || of_thread.error->first < error->first))
            error = std::move(of_thread.error);
    }
    const double all = seconds(receive + verify);
    const double scale = all > 0 ? seconds(longest) / all : 0;
    receive_ += std::chrono::duration_cast<Duration>(receive * scale);
    verify_ += std::chrono::duration_cast<Duration>(verify * scale);
    std::ranges::sort(problems);
    for (auto& [index, problem] : problems) problems_.push_back(std::move(problem));
    if (error) return std::move(error->second);
    return problems_.empty() ? Result<>(Ok{}) : fail_with_problems();
}

Result<> WeightStage::take_sparse(std::span<const SparseTensor> tensors) {
    std::vector<TensorSpec> offered;
    for (const SparseTensor& sparse : tensors) {
        offered.push_back(sparse.spec);
        const WeightTensor* tensor = args_.layout.find(sparse.spec.name);
        if (tensor == nullptr) continue;
        if (states_[index_of(*tensor)] == State::kArrived) {
            problems_.push_back(
                fmt::format("'{}' arrived whole before in this update", sparse.spec.name)
            );
        }
    }
    std::vector<std::string> found = find_problems(args_.layout, offered, Completeness::kPartial);
    std::ranges::move(found, std::back_inserter(problems_));
    for (const SparseTensor& sparse : tensors) {
        if (!problems_.empty()) break;  // the shape is the model's below
        std::int64_t num_elements = 1;
        for (const std::int64_t extent : sparse.spec.shape) num_elements *= extent;
        for (std::int64_t i = 0; problems_.empty() && i < sparse.num; ++i) {
            std::int32_t index = 0;
            std::memcpy(&index, sparse.indices + i * 4, sizeof index);
            if (index >= 0 && index < num_elements) continue;
            problems_.push_back(fmt::format(
                "'{}': update {} is of element {}; the tensor has {}",
                sparse.spec.name,
                i,
                index,
                num_elements
            ));
        }
    }
    if (!problems_.empty()) return fail_with_problems();
    mark_written();
    for (const SparseTensor& sparse : tensors) {
        const WeightTensor* tensor = args_.layout.find(sparse.spec.name);
        if (tensor == nullptr) continue;  // one that checkpoints carry and this model ignores
        RETURN_IF_ERROR(scatter(sparse, *tensor));
    }
    return Ok{};
}

// Digested by finish(): more updates of the same tensor may come.
Result<> WeightStage::scatter(const SparseTensor& sparse, const WeightTensor& tensor) {
    const TimePoint begun = Clock::now();
    State& state = states_[index_of(tensor)];
    if (state == State::kAbsent && args_.target != args_.live) {
        std::memcpy(
            args_.target + tensor.offset,
            args_.live + tensor.offset,
            static_cast<std::size_t>(tensor.bytes())
        );
    }
    state = State::kSparse;
    ++num_tensors_;
    auto* shard = reinterpret_cast<bf16*>(args_.target + tensor.offset);
    const std::int64_t value_bytes = bytes_of(sparse.spec.dtype);
    for (std::int64_t i = 0; i < sparse.num; ++i) {
        std::int32_t index = 0;
        std::memcpy(&index, sparse.indices + i * 4, sizeof index);
        const std::int64_t row = index / tensor.whole_cols;
        const std::int64_t col = index % tensor.whole_cols;
        std::int64_t shard_at = 0;
        for (const ShardPart& part : tensor.parts) {
            const std::int64_t at = tensor.axis == SplitAxis::kCols ? col : row;
            const bool is_here =
                tensor.axis == SplitAxis::kNone || (at >= part.begin && at < part.begin + part.num);
            if (is_here) {
                const std::int64_t shard_row =
                    tensor.axis == SplitAxis::kRows ? shard_at + row - part.begin : row;
                const std::int64_t shard_col =
                    tensor.axis == SplitAxis::kCols ? shard_at + col - part.begin : col;
                shard[shard_row * tensor.cols + shard_col] =
                    bf16_from(sparse.spec.dtype, sparse.values + i * value_bytes);
            }
            shard_at += part.num;
        }
    }
    receive_ += Clock::now() - begun;
    if (is_dropped()) return make_error(ErrorCode::kAborted, "the stage was dropped");
    return Ok{};
}

RankOutcome WeightStage::outcome(const Result<>& result) const {
    RankOutcome outcome;
    outcome.rank = args_.rank;
    outcome.ok = result.has_value();
    outcome.phase = phase_;
    outcome.bytes = bytes_;
    outcome.tensors = num_tensors_;
    outcome.receive_s = seconds(receive_);
    outcome.verify_s = seconds(verify_);
    if (result) return outcome;
    outcome.code = name_of(result.error().code);
    outcome.problems = problems_;
    if (outcome.problems.empty()) outcome.problems.push_back(result.error().message);
    outcome.num_problems = static_cast<std::int64_t>(outcome.problems.size());
    outcome.problems.resize(std::min(outcome.problems.size(), kProblemsMax));
    // Sources quote what a sender said, or its beginning; a message's texts are UTF-8.
    for (std::string& problem : outcome.problems) {
        if (!is_utf8(problem)) problem = printable(problem);
    }
    return outcome;
}

WorkerStaged WeightStage::vote(const Result<>& result) const {
    WorkerStaged vote;
    vote.update = args_.update;
    vote.outcome = outcome(result);
    if (result) vote.digests = digests_;
    return vote;
}

}  // namespace pitstop
