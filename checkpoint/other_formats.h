// Recognizes what is often taken for a checkpoint and is none, and says what to do.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::checkpoint {

// Says what a place without safetensors is or holds: "no such directory", "holds x.gguf: GGUF is
// not read".
[[nodiscard]] std::string what_it_is_instead(const std::string& directory);

// Tells whether a file's first bytes are those of a pointer that git-lfs left in place of the file.
[[nodiscard]] bool is_lfs_pointer(std::string_view begin);

}  // namespace pitstop::checkpoint
