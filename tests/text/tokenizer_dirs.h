// Finds the tests' tokenizers: the small one in tests/data, always; larger ones, if they exist, in
// the directory named by PITSTOP_SHARED, or next to the sources.
#pragma once

#include "tests/source_dir.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace pitstop::text {

inline std::filesystem::path demo_tokenizer_dir() {
    return std::filesystem::path(source_dir()) / "tests/data/tokenizers/demo";
}

inline std::filesystem::path shared_tokenizers_dir() {
    const char* named = std::getenv("PITSTOP_SHARED");
    const std::filesystem::path shared = named != nullptr
                                             ? std::filesystem::path(named)
                                             : std::filesystem::path(source_dir()) / "../shared";
    return shared / "tokenizers";
}

// Lists "demo" first, then the shared ones by name.
inline std::vector<std::string> tokenizer_names() {
    std::vector<std::string> names = {"demo"};
    std::error_code missing;
    for (const auto& entry :
         std::filesystem::directory_iterator(shared_tokenizers_dir(), missing)) {
        const std::string name = entry.path().filename();
        if (name != "demo" && std::filesystem::exists(entry.path() / "tokenizer.json"))
            names.push_back(name);
    }
    std::sort(names.begin() + 1, names.end());
    return names;
}

inline std::filesystem::path tokenizer_dir(const std::string& name) {
    return name == "demo" ? demo_tokenizer_dir() : shared_tokenizers_dir() / name;
}

}  // namespace pitstop::text
