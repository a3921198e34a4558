#include "tp_worker/weight_stage.h"

#include "tp_worker/safetensors.h"
#include "tp_worker/weight_digest.h"
#include "tp_worker/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

namespace pitstop {
namespace {

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
    TensorFiller(const StageArgs& args, const Checkpoint& checkpoint)
        : args_(args), checkpoint_(checkpoint), pacer_(args.pace) {}

    // `parts`: the entries of the tensor's parts, their lanes zero. False: the stage is over.
    bool fill(std::size_t index, std::span<PartDigest> parts) {
        index_ = index;
        parts_ = parts;
        is_nonfinite_ = false;
        const WeightTensor& tensor = args_.layout.tensors()[index];
        const StoredTensor* stored = checkpoint_.find(tensor.name);
        piece_begun_ = Clock::now();
        Result<> result = stored == nullptr ? keep(tensor) : load(tensor, *stored);
        if (!result) filled_.error = {index, std::move(result.error())};
        return !filled_.error;
    }
    [[nodiscard]] const Filled& filled() const { return filled_; }

  private:
    Result<> load(const WeightTensor& tensor, const StoredTensor& stored) {
        ++filled_.num_tensors;
        return load_tensor(
            {.tensor = tensor,
             .stored = stored,
             .checkpoint = checkpoint_,
             .ops = args_.ops,
             .arena = args_.target},
            scratch_,
            [&](std::int64_t begin, std::int64_t num) { return written(tensor, begin, num); }
        );
    }

    // A partial update leaves it as it is: in the staged copy a copy of the live one.
    Result<> keep(const WeightTensor& tensor) {
        const std::int64_t row_bytes = tensor.cols * static_cast<std::int64_t>(sizeof(bf16));
        const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
        for (std::int64_t row = 0; row < tensor.rows; row += rows_max) {
            const std::int64_t num = std::min(rows_max, tensor.rows - row);
            const std::int64_t offset = tensor.offset + row * row_bytes;
            if (args_.target != args_.live) {
                std::memcpy(
                    args_.target + offset,
                    args_.live + offset,
                    static_cast<std::size_t>(num * row_bytes)
                );
            }
            RETURN_IF_ERROR(written(tensor, row, num));
        }
        return Ok{};
    }

    // Rows [begin, begin + num) of the shard are in their place.
    Result<> written(const WeightTensor& tensor, std::int64_t begin, std::int64_t num) {
        const TimePoint received = Clock::now();
        filled_.receive += received - piece_begun_;
        filled_.bytes += num * tensor.cols * static_cast<std::int64_t>(sizeof(bf16));
        const std::uint64_t num_nonfinite = add_rows_digest(
            {.tensor = tensor,
             .arena = args_.target,
             .row_begin = begin,
             .num_rows = num,
             .ops = args_.ops},
            parts_
        );
        if (num_nonfinite != 0 && !args_.spec.allow_nonfinite) report_nonfinite(tensor, begin, num);
        filled_.verify += Clock::now() - received;
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
    const Checkpoint& checkpoint_;
    Pacer pacer_;
    Filled filled_{};
    std::size_t index_ = 0;          // of the tensor being filled
    std::span<PartDigest> parts_{};  // its
    bool is_nonfinite_ = false;      // and that was said
    std::vector<std::byte> scratch_{};
    TimePoint piece_begun_{};
};

class WeightStage {
  public:
    explicit WeightStage(const StageArgs& args) : args_(args) {
        vote_.update = args.update;
        vote_.outcome.rank = args.rank;
        vote_.outcome.phase = "idle";
    }

    WorkerStaged run() {
        Result<> result = fill();
        RankOutcome& outcome = vote_.outcome;
        outcome.ok = result.has_value();
        if (result) {
            outcome.phase = "prepared";
        } else {
            outcome.code = name_of(result.error().code);
            if (problems_.empty()) problems_.push_back(result.error().message);
            outcome.num_problems = static_cast<std::int64_t>(problems_.size());
            problems_.resize(std::min(problems_.size(), kProblemsMax));
            outcome.problems = std::move(problems_);
            vote_.digests.clear();
        }
        return std::move(vote_);
    }

  private:
    Result<> fill() {
        ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(args_.spec.source.path));
        RETURN_IF_ERROR(check(checkpoint));
        args_.at("stage_begin");
        vote_.outcome.phase = "stage";
        return merge(fill_all(checkpoint));
    }

    // Tensors are claimed by the threads one at a time, the largest first. The first thread always
    // works; the others are there for the time when no pass runs.
    std::vector<Filled> fill_all(const Checkpoint& checkpoint) {
        const std::span<const WeightTensor> tensors = args_.layout.tensors();
        std::vector<std::size_t> order(tensors.size());
        std::vector<std::size_t> first_part;  // of each tensor, in vote_.digests
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            order[i] = i;
            first_part.push_back(vote_.digests.size());
            append_parts(tensors[i], vote_.digests);
        }
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return tensors[a].rows * tensors[a].cols > tensors[b].rows * tensors[b].cols;
        });
        std::atomic<std::size_t> num_claimed{0};
        std::atomic<bool> is_over{false};
        std::vector<Filled> filled(static_cast<std::size_t>(std::max(1, args_.num_threads)));
        const auto work = [&](std::size_t thread) {
            constexpr auto kLook = std::chrono::milliseconds(1);
            TensorFiller filler(args_, checkpoint);
            while (!is_over.load(std::memory_order_relaxed)) {
                if (thread != 0 && args_.pace.is_serving()) {
                    if (num_claimed.load(std::memory_order_relaxed) >= order.size()) break;
                    std::this_thread::sleep_for(kLook);
                    continue;
                }
                const std::size_t claim = num_claimed.fetch_add(1, std::memory_order_relaxed);
                if (claim >= order.size()) break;
                if (claim == order.size() / 2) args_.at("stage_half");
                const std::size_t i = order[claim];
                const std::span<PartDigest> parts =
                    std::span(vote_.digests).subspan(first_part[i], tensors[i].parts.size());
                if (!filler.fill(i, parts)) is_over.store(true, std::memory_order_relaxed);
            }
            filled[thread] = filler.filled();
        };
        std::vector<std::thread> helpers;  // they inherit this thread's low priority
        for (std::size_t thread = 1; thread < filled.size(); ++thread)
            helpers.emplace_back(work, thread);
        work(0);
        for (std::thread& helper : helpers) helper.join();
        return filled;
    }

    // Problems and errors in the tensors' order. The seconds are those of the thread that was busy
    // longest, divided as all threads' were.
    Result<> merge(std::vector<Filled> filled) {
        Duration receive{}, verify{}, longest{};
        std::vector<std::pair<std::size_t, std::string>> problems;
        std::optional<std::pair<std::size_t, Error>> error;
        for (Filled& of_thread : filled) {
            vote_.outcome.tensors += of_thread.num_tensors;
            vote_.outcome.bytes += of_thread.bytes;
            receive += of_thread.receive;
            verify += of_thread.verify;
            longest = std::max(longest, of_thread.busy());
            std::ranges::move(of_thread.problems, std::back_inserter(problems));
            if (of_thread.error && (!error || of_thread.error->first < error->first))
                error = std::move(of_thread.error);
        }
        const double all = seconds(receive + verify);
        const double scale = all > 0 ? seconds(longest) / all : 0;
        vote_.outcome.receive_s = seconds(receive) * scale;
        vote_.outcome.verify_s = seconds(verify) * scale;
        std::ranges::sort(problems);
        for (auto& [index, problem] : problems) problems_.push_back(std::move(problem));
        if (error) return std::move(error->second);
        if (!problems_.empty()) return Error{ErrorCode::kInvalidArgument, problems_.front()};
        return Ok{};
    }

    // Before anything is written: the model, the names, shapes and dtypes, the manifest.
    Result<> check(const Checkpoint& checkpoint) {
        const std::string& path = args_.spec.source.path;
        if (std::filesystem::exists(std::filesystem::path(path) / "config.json")) {
            ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::read(path));
            if (const auto difference = difference_in_shape(args_.config, config)) {
                return make_error(
                    ErrorCode::kInvalidArgument, "'{}' is another model: {}", path, *difference
                );
            }
        }
        std::vector<TensorSpec> offered;
        for (const StoredTensor& stored : checkpoint.tensors()) offered.push_back(stored.spec);
        problems_ = find_problems(
            args_.layout,
            offered,
            args_.spec.partial ? Completeness::kPartial : Completeness::kWhole
        );
        for (const TensorInfo& declared : args_.spec.manifest) check_declared(declared, checkpoint);
        for (const WeightTensor& tensor : args_.layout.tensors()) {
            if (tensor.cuts_words) {
                problems_.push_back(fmt::format(
                    "'{}': the ranks' parts of its rows do not end between words of the digest",
                    tensor.name
                ));
            }
        }
        if (problems_.empty()) return Ok{};
        return Error{ErrorCode::kInvalidArgument, problems_.front()};
    }

    void check_declared(const TensorInfo& declared, const Checkpoint& checkpoint) {
        const WeightTensor* tensor = args_.layout.find(declared.name);
        if (tensor == nullptr) {
            if (!args_.layout.is_ignored(declared.name)) {
                problems_.push_back(
                    fmt::format("'{}' is declared and is no tensor of this model", declared.name)
                );
            }
            return;
        }
        if (checkpoint.find(declared.name) == nullptr) {
            problems_.push_back(fmt::format("'{}' is declared and did not arrive", declared.name));
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

    const StageArgs& args_;
    WorkerStaged vote_{};
    std::vector<std::string> problems_{};
};

}  // namespace

WorkerStaged stage_weights(const StageArgs& args) { return WeightStage(args).run(); }

}  // namespace pitstop
