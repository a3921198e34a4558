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
    {"", ".gguf", "GGUF is not read; take the safetensors that it was made of"},
    {"adapter_",
     ".safetensors",
     "this is an adapter; merge it into its model first (PEFT's merge_and_unload)"},
    {"pytorch_model",
     ".bin",
     "pickles of weights are not read; save it again with save_pretrained"},
    {"",
     ".safetensors",
     "a single file must be called model.safetensors, several need their index"},
    {"", ".pt", "pickles of weights are not read; save it again with save_pretrained"},
}};

}  // namespace

std::string what_it_is_instead(const std::string& directory) {
    std::error_code failure;
    const fs::file_status status = fs::status(directory, failure);
    if (!fs::exists(status)) return "there is no such directory";
    if (!fs::is_directory(status)) return "it is a file; name the directory that holds it";
    for (const Format& format : kFormats) {
        for (fs::directory_iterator entry(directory, failure), end; !failure && entry != end;
             entry.increment(failure)) {
            const std::string name = entry->path().filename().string();
            if (name.starts_with(format.begin) && name.ends_with(format.end))
                return fmt::format("it holds {}: {}", name, format.advice);
        }
    }
    return "it holds neither model.safetensors nor model.safetensors.index.json";
}

bool is_lfs_pointer(std::string_view begin) {
    return begin.starts_with("version ");  // "version https://git-lfs.github.com/spec/v1"
}

}  // namespace pitstop::checkpoint
