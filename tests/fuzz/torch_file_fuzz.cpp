// Files of torch.save: zip archives with a pickle. The tensors of an accepted file are within it
// and have distinct names. Corpus: tests/data/torch_files.
#include "base/check.h"
#include "checkpoint/torch_file.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace pitstop;  // NOLINT: a program of two functions

const std::string kPath = "adapter_model.bin";
constexpr checkpoint::ReadLimits kLimits{.tensors_max = 1000};

void read_file(int fd, std::int64_t num_bytes) {
    const auto tensors = checkpoint::read_torch_file(
        {.fd = fd, .file_bytes = num_bytes, .path = kPath, .limits = kLimits}
    );
    if (!tensors) {
        CHECK(!tensors.error().message.empty());
        return;
    }
    CHECK(tensors->size() <= kLimits.tensors_max);
    std::set<std::string_view> names;
    for (const checkpoint::StoredTensor& tensor : *tensors) {
        CHECK(names.insert(tensor.spec.name).second);
        CHECK(tensor.bytes >= 0 && tensor.file_offset >= 0);
        CHECK(tensor.bytes <= num_bytes - tensor.file_offset);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const int fd = ::memfd_create("input", 0);
    CHECK(fd >= 0);
    CHECK(::ftruncate(fd, static_cast<off_t>(size)) == 0);
    CHECK(::pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
    read_file(fd, static_cast<std::int64_t>(size));
    return 0;
}
