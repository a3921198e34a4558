#include "tp_worker/weight_stage.h"

#include "tp_worker/safetensors.h"
#include "tp_worker/weight_digest.h"
#include "tp_worker/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

namespace pitstop {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

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
        const std::span<const WeightTensor> tensors = args_.layout.tensors();
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (i == tensors.size() / 2) args_.at("stage_half");
            const std::size_t first_part = vote_.digests.size();
            append_parts(tensors[i], vote_.digests);
            parts_ = std::span(vote_.digests).subspan(first_part);
            RETURN_IF_ERROR(fill_tensor(tensors[i], checkpoint));
        }
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

    Result<> fill_tensor(const WeightTensor& tensor, const Checkpoint& checkpoint) {
        const StoredTensor* stored = checkpoint.find(tensor.name);
        if (stored == nullptr) return keep_tensor(tensor);
        ++vote_.outcome.tensors;
        begin_piece();
        return load_tensor(
            {.tensor = tensor,
             .stored = *stored,
             .checkpoint = checkpoint,
             .ops = args_.ops,
             .arena = args_.target},
            scratch_,
            [&](std::int64_t begin, std::int64_t num) { return written(tensor, begin, num); }
        );
    }

    // A partial update leaves it as it is: in the staged copy a copy of the live one.
    Result<> keep_tensor(const WeightTensor& tensor) {
        const std::int64_t row_bytes = tensor.cols * static_cast<std::int64_t>(sizeof(bf16));
        const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
        begin_piece();
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

    void begin_piece() {
        args_.pace.begin();
        piece_begun_ = Clock::now();
    }

    // Rows [begin, begin + num) of the shard are in their place.
    Result<> written(const WeightTensor& tensor, std::int64_t begin, std::int64_t num) {
        const TimePoint received = Clock::now();
        vote_.outcome.receive_s += seconds(received - piece_begun_);
        vote_.outcome.bytes += num * tensor.cols * static_cast<std::int64_t>(sizeof(bf16));
        const std::uint64_t num_nonfinite = add_rows_digest(
            {.tensor = tensor,
             .arena = args_.target,
             .row_begin = begin,
             .num_rows = num,
             .ops = args_.ops},
            parts_
        );
        if (num_nonfinite != 0 && !args_.spec.allow_nonfinite) report_nonfinite(tensor, begin, num);
        vote_.outcome.verify_s += seconds(Clock::now() - received);
        args_.pace.rest();
        if (args_.is_dropped.load(std::memory_order_relaxed))
            return make_error(ErrorCode::kAborted, "the stage was dropped");
        begin_piece();
        return Ok{};
    }

    // Which one: rows [begin, begin + num) of the shard have at least one.
    void report_nonfinite(const WeightTensor& tensor, std::int64_t begin, std::int64_t num) {
        if (last_nonfinite_ == &tensor) return;  // one report a tensor
        const auto* rows =
            reinterpret_cast<const bf16*>(args_.target + tensor.offset) + begin * tensor.cols;
        std::int64_t index = 0;
        while (index + 1 < num * tensor.cols && std::isfinite(to_float(rows[index]))) ++index;
        last_nonfinite_ = &tensor;
        problems_.push_back(fmt::format(
            "'{}' is not finite: {} at row {}, column {} of this rank's shard (allow_nonfinite "
            "would accept it)",
            tensor.name,
            to_float(rows[index]),
            begin + index / tensor.cols,
            index % tensor.cols
        ));
    }

    const StageArgs& args_;
    WorkerStaged vote_{};
    std::vector<std::string> problems_{};
    std::span<PartDigest> parts_{};  // of the tensor being filled
    std::vector<std::byte> scratch_{};
    TimePoint piece_begun_{};
    const WeightTensor* last_nonfinite_ = nullptr;
};

}  // namespace

WorkerStaged stage_weights(const StageArgs& args) { return WeightStage(args).run(); }

}  // namespace pitstop
