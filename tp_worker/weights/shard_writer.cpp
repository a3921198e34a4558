#include "tp_worker/weights/shard_writer.h"

#include "tp_worker/weights/gpu_writer.h"
#include "tp_worker/weights/host_stage_writer.h"
#include "tp_worker/weights/host_writer.h"

#include <fmt/format.h>

namespace pitstop::tp_worker {

std::unique_ptr<ShardWriter> make_shard_writer(const StageArgs& args) {
    if (args.gpu != nullptr) return std::make_unique<GpuWriter>(args, *args.gpu);
    if (args.pieces != nullptr) return std::make_unique<HostStageWriter>(args, *args.pieces);
    return std::make_unique<HostWriter>(args);
}

std::string nonfinite_problem(
    const WeightTensor& tensor, bf16 value, std::int64_t row, std::int64_t col
) {
    return fmt::format(
        "'{}' is not finite: {} at row {}, column {} of this rank's shard (allow_nonfinite would "
        "accept it)",
        tensor.name,
        to_float(value),
        row,
        col
    );
}

}  // namespace pitstop::tp_worker
