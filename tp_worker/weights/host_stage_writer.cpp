#include "tp_worker/weights/host_stage_writer.h"

#include <iterator>
#include <utility>

namespace pitstop::tp_worker {
namespace {

void add(Filled& sum, Filled more) {
    sum.num_tensors += more.num_tensors;
    sum.bytes += more.bytes;
    sum.receive += more.receive;
    sum.verify += more.verify;
    sum.rest += more.rest;
    std::move(more.problems.begin(), more.problems.end(), std::back_inserter(sum.problems));
    if (!sum.error) sum.error = std::move(more.error);
}

}  // namespace

Filled HostStageWriter::fill(std::vector<FillJob> jobs, Keep keep) {
    Filled sum;
    std::vector<FillJob> here;
    for (FillJob& job : jobs) {
        if (sum.error) return sum;
        if (args_.is_dropped.load(std::memory_order_relaxed)) {
            sum.error = {job.index, make_error(ErrorCode::kAborted, "the stage was dropped")};
            return sum;
        }
        if (job.incoming != nullptr && job.incoming->bytes.is_on_gpu) {
            add(sum, fill_from_gpu(job));
            continue;
        }
        if (job.incoming == nullptr && keep == Keep::kCopy && args_.target != args_.live) {
            const TimePoint begun = Clock::now();
            copy_live(args_.layout.tensors()[job.index]);
            sum.receive += Clock::now() - begun;
        }
        here.push_back(job);
    }
    if (!here.empty()) add(sum, host_.fill(std::move(here), Keep::kInPlace));
    return sum;
}

Filled HostStageWriter::fill_from_gpu(FillJob job) {
    Incoming incoming{.spec = job.incoming->spec, .bytes = job.incoming->bytes};
    const WeightTensor& tensor = args_.layout.tensors()[job.index];
    const std::int64_t row_bytes = tensor.whole_cols * bytes_of(incoming.spec.dtype);
    const TensorRows rows = job.incoming->rows.value_or(TensorRows{.num = tensor.whole_rows});
    const std::int64_t begin = rows.begin * row_bytes;
    const TimePoint begun = Clock::now();
    fetched_.resize(static_cast<std::size_t>(rows.num * row_bytes));
    pieces_.fetch(fetched_.data(), incoming.bytes.data + begin, std::ssize(fetched_));
    const Duration fetching = Clock::now() - begun;
    incoming.bytes.data = fetched_.data() - begin;  // addressed as the whole tensor's
    incoming.bytes.is_on_gpu = false;
    job.incoming = &incoming;
    Filled filled = host_.fill({job}, Keep::kInPlace);
    filled.receive += fetching;
    return filled;
}

void HostStageWriter::copy_live(const WeightTensor& tensor) {
    pieces_.fetch(args_.target + tensor.offset, args_.live + tensor.offset, tensor.bytes());
}

}  // namespace pitstop::tp_worker
