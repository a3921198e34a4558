// Recognizes directories that are often mistaken for a checkpoint, and says what to do.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::checkpoint {

// Describes a directory without safetensors: "the directory does not exist", "it contains x.gguf:
// GGUF is not supported".
[[nodiscard]] std::string what_it_is_instead(const std::string& directory);

// Returns whether a file's first bytes are a pointer that git-lfs left in place of the file.
[[nodiscard]] bool is_lfs_pointer(std::string_view begin);

}  // namespace pitstop::checkpoint
