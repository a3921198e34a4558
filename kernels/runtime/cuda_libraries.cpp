#include "kernels/runtime/cuda_libraries.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <sstream>
#include <unistd.h>

namespace pitstop::kernels {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// Returns the first python3 on the PATH, by its path there; empty if there is none.
fs::path python() {
    std::istringstream path(environment("PATH"));
    for (std::string folder; std::getline(path, folder, ':');) {
        if (folder.empty()) continue;
        fs::path candidate = fs::path(folder) / "python3";
        if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return {};
}

void add_site_packages(const fs::path& lib, std::vector<fs::path>& found) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(lib, error)) {
        if (!entry.path().filename().string().starts_with("python3")) continue;
        for (const char* name : {"site-packages", "dist-packages"}) {
            const fs::path packages = entry.path() / name;
            const bool is_known = std::find(found.begin(), found.end(), packages) != found.end();
            if (!is_known && fs::is_directory(packages, error)) found.push_back(packages);
        }
    }
}

// Returns the site-packages of an environment (found by the link in its bin), of the interpreter
// behind it, and of the user.
// Source: Python documentation, "site: Site-specific configuration hook", "venv".
std::vector<fs::path> site_packages() {
    std::vector<fs::path> found;
    const fs::path named = python();
    if (named.empty()) return found;
    std::error_code error;
    std::vector<fs::path> prefixes{named.parent_path().parent_path()};
    if (const fs::path real = fs::canonical(named, error); !error)
        prefixes.push_back(real.parent_path().parent_path());
    if (const std::string home = environment("HOME"); !home.empty())
        prefixes.push_back(fs::path(home) / ".local");
    for (const fs::path& prefix : prefixes) {
        for (const char* lib : {"lib", "lib64", "local/lib"})
            add_site_packages(prefix / lib, found);
    }
    if (std::find(prefixes.begin(), prefixes.end(), fs::path("/usr")) != prefixes.end()) {
        add_site_packages("/usr/local/lib", found);
        const fs::path debian = "/usr/lib/python3/dist-packages";
        if (std::find(found.begin(), found.end(), debian) == found.end()) found.push_back(debian);
    }
    return found;
}

}  // namespace

std::vector<std::string> library_places(
    std::string_view name, std::span<const std::string_view> packages
) {
    std::vector<std::string> places;
    std::error_code error;
    const fs::path executable = fs::read_symlink("/proc/self/exe", error);
    if (!error) {
        const fs::path folder = executable.parent_path();
        places.push_back((folder / name).string());
        places.push_back((folder.parent_path() / "lib" / name).string());
    }
    places.emplace_back(name);
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        const std::string home = environment(variable);
        if (home.empty()) continue;
        for (const char* lib : {"lib64", "lib"})
            places.push_back((fs::path(home) / lib / name).string());
    }
    places.push_back((fs::path("/usr/local/cuda/lib64") / name).string());
    for (const fs::path& site : site_packages()) {
        for (const std::string_view package : packages)
            places.push_back((site / package / name).string());
    }
    return places;
}

std::string find_nccl() {
    constexpr std::string_view kName = "libnccl.so.2";
    constexpr std::array<std::string_view, 1> kPackages{"nvidia/nccl/lib"};
    std::error_code error;
    for (const std::string& place : library_places(kName, kPackages)) {
        if (place != kName) {
            if (fs::exists(place, error)) return place;
        } else if (void* const library = dlopen(place.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
            // Only the loader knows its search path. The library found in this way stays
            // open but unused.
            link_map* map = nullptr;
            const bool is_named = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
            return is_named ? map->l_name : place;
        }
    }
    return {};
}

}  // namespace pitstop::kernels
