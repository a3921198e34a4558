#include "tests/tp_worker/update/stored_tensors.h"

#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"

#include <cstring>
#include <fstream>
#include <iterator>

namespace pitstop::tp_worker {

std::map<std::string, StoredTensor> tensors_of(const std::string& model) {
    std::ifstream file(model_dir(model) + "/model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t header_len = 0;
    std::memcpy(&header_len, bytes.data(), 8);
    const auto header = parse_json(bytes.substr(8, header_len));
    const auto at = [&](const Json& offset) {
        return bytes.begin() +
               static_cast<std::ptrdiff_t>(8 + header_len + offset.get<std::uint64_t>());
    };
    std::map<std::string, StoredTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        const Json& offsets = entry["data_offsets"];
        tensors[name] = {entry["shape"], Bytes(at(offsets[0]), at(offsets[1]))};
    }
    return tensors;
}

}  // namespace pitstop::tp_worker
