#include "tp_worker/weights/tensor_bytes.h"

namespace pitstop::tp_worker {

TensorBytes stored_bytes(
    const checkpoint::Checkpoint& checkpoint, const checkpoint::StoredTensor& stored
) {
    TensorBytes bytes{.dtype = stored.spec.dtype};
    bytes.read = [&checkpoint, &stored](std::int64_t begin, std::span<std::byte> out) {
        return checkpoint.read(stored, begin, out);
    };
    if (const std::span<const std::byte> mapped = checkpoint.mapped(stored); !mapped.empty()) {
        bytes.data = mapped.data();
        bytes.is_whole = [&checkpoint, &stored] { return checkpoint.is_whole(stored); };
    }
    return bytes;
}

}  // namespace pitstop::tp_worker
