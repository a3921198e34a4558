#include "tests/checkpoint/safetensors_file.h"

#include <cstring>
#include <fstream>
#include <iterator>

namespace pitstop::test {

SafetensorsFile::SafetensorsFile(const std::string& dir) {
    std::ifstream file(dir + "/model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t header_len = 0;
    std::memcpy(&header_len, bytes.data(), sizeof header_len);
    header_ = nlohmann::json::parse(bytes.substr(8, header_len));
    data_ = bytes.substr(8 + header_len);
}

std::string SafetensorsFile::bytes_of(const std::string& name) const {
    const std::size_t begin = header_[name]["data_offsets"][0];
    const std::size_t end = header_[name]["data_offsets"][1];
    return data_.substr(begin, end - begin);
}

std::vector<std::int64_t> SafetensorsFile::shape_of(const std::string& name) const {
    return header_[name]["shape"];
}

void SafetensorsFile::add(
    const std::string& name,
    const std::string& dtype,
    const std::vector<std::int64_t>& shape,
    const std::string& bytes
) {
    header_[name] = {
        {"dtype", dtype},
        {"shape", shape},
        {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
}

void SafetensorsFile::rename(const std::string& name, const std::string& other) {
    header_[other] = header_[name];
    header_.erase(name);
}

void SafetensorsFile::write(const TempDir& dir) const {
    const std::string text = header_.dump();
    const std::uint64_t text_len = text.size();
    dir.write(
        "model.safetensors", std::string(reinterpret_cast<const char*>(&text_len), 8) + text + data_
    );
}

std::string widened(const std::string& bf16_bytes) {
    std::string wide;
    for (std::size_t i = 0; i + 1 < bf16_bytes.size(); i += 2)
        wide += std::string(2, '\0') + bf16_bytes.substr(i, 2);
    return wide;
}

}  // namespace pitstop::test
