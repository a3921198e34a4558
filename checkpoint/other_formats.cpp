#include "checkpoint/other_formats.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <system_error>

namespace pitstop::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Format {
    std::string_view begin{};  // of the file's name
    std::string_view end{};
    std::string_view advice{};
};
constexpr std::array<Format, 5> kFormats{{
    {"", ".gguf", "GGUF is not supported; use the safetensors that it was made from"},
    {"adapter_",
     ".safetensors",
     "this is an adapter; serve its model, and then load it with load-adapter"},
    {"pytorch_model",
     ".bin",
     "pickled weights are not supported; save the model again with save_pretrained"},
    {"",
     ".safetensors",
     "a single file must be named model.safetensors; several need model.safetensors.index.json"},
    {"", ".pt", "pickled weights are not supported; save the model again with save_pretrained"},
}};

}  // namespace

std::string what_it_is_instead(const std::string& directory) {
    std::error_code failure;
    const fs::file_status status = fs::status(directory, failure);
    if (!fs::exists(status)) return "the directory does not exist";
    if (!fs::is_directory(status)) return "it is a file; name the directory that contains it";
    for (const Format& format : kFormats) {
        for (fs::directory_iterator entry(directory, failure), end; !failure && entry != end;
             entry.increment(failure)) {
            const std::string name = entry->path().filename().string();
            if (name.starts_with(format.begin) && name.ends_with(format.end))
                return fmt::format("it contains {}: {}", name, format.advice);
        }
    }
    return "it contains neither model.safetensors nor model.safetensors.index.json";
}

bool is_lfs_pointer(std::string_view begin) {
    return begin.starts_with("version ");  // "version https://git-lfs.github.com/spec/v1"
}

}  // namespace pitstop::checkpoint
