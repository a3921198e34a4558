#include "tests/tp_worker/update/stored_tensors.h"

#include "tests/checkpoint/safetensors_file.h"
#include "tests/tp_worker/test_replica.h"

namespace pitstop::tp_worker {

std::map<std::string, StoredTensor> tensors_of(const std::string& model) {
    const test::SafetensorsFile file(model_dir(model));
    std::map<std::string, StoredTensor> tensors;
    for (const auto& [name, entry] : file.header().items()) {
        if (name == "__metadata__") continue;
        const std::string bytes = file.bytes_of(name);
        tensors[name] = {file.shape_of(name), Bytes(bytes.begin(), bytes.end())};
    }
    return tensors;
}

}  // namespace pitstop::tp_worker
