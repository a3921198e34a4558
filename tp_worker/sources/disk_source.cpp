#include "tp_worker/sources/disk_source.h"

#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/weights/checkpoint_tensors.h"

#include <filesystem>
#include <system_error>

namespace pitstop::tp_worker {

Result<> deliver_disk(const SourceArgs& args) {
    const std::string& path = args.source.path;
    const StageArgs& stage = args.stage.args();
    const bool is_adapter = stage.layout.is_of_adapter();
    const checkpoint::ReadLimits limits{
        .tensors_max = offered_max(stage.layout), .is_dropped = &stage.is_dropped};
    ASSIGN_OR_RETURN(
        const checkpoint::Checkpoint checkpoint,
        is_adapter ? checkpoint::Checkpoint::open_adapter(path, limits)
                   : checkpoint::Checkpoint::open(path, limits)
    );
    std::error_code unseen;  // an unreadable file counts as missing
    if (!is_adapter &&
        std::filesystem::exists(std::filesystem::path(path) / "config.json", unseen)) {
        ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::read(path));
        if (const auto difference = difference_in_shape(stage.config, config)) {
            return make_error(
                ErrorCode::kInvalidArgument, "'{}' is a different model: {}", path, *difference
            );
        }
    }
    std::vector<Incoming> incoming;
    const auto offer = [&](const checkpoint::StoredTensor& stored) {
        incoming.push_back({.spec = stored.spec, .bytes = stored_bytes(checkpoint, stored)});
    };
    if (is_adapter) {  // a tensor that its configuration does not name is a mistake
        for (const checkpoint::StoredTensor& stored : checkpoint.tensors()) offer(stored);
    } else {
        const CheckpointTensors tensors(stage.layout, checkpoint);
        if (raw(args.worker.rank) == 0) {
            for (const std::string& note : tensors.notes()) spdlog::warn("'{}': {}", path, note);
        }
        for (const checkpoint::StoredTensor* stored : tensors.offered()) offer(*stored);
    }
    RETURN_IF_ERROR(args.stage.stage_tensors(incoming, args.expect));
    return checkpoint.is_unchanged();
}

}  // namespace pitstop::tp_worker
