#include "kernels/runtime/cuda_libraries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace pitstop::kernels::test {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "libcublasLt.so.13";
constexpr std::array<std::string_view, 2> kPackages{"nvidia/cu13/lib", "nvidia/cublas/lib"};

// Sets a variable of the environment for as long as the test runs.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) {
        if (const char* const before = std::getenv(name); before != nullptr) before_ = before;
        ::setenv(name, value.c_str(), 1);
    }
    ~Variable() {
        if (before_) {
            ::setenv(name_, before_->c_str(), 1);
        } else {
            ::unsetenv(name_);
        }
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

  private:
    const char* name_;
    std::optional<std::string> before_{};
};

class CudaLibraries : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = fs::temp_directory_path() / "pitstop-libraries-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        root = name;
    }
    void TearDown() override { fs::remove_all(root); }
    // Makes an interpreter that fails if it is run.
    fs::path make_python(const fs::path& prefix) const {
        fs::create_directories(prefix / "bin");
        std::ofstream(prefix / "bin/python3") << "#!/bin/false\n";
        fs::permissions(prefix / "bin/python3", fs::perms::owner_all);
        fs::create_directories(prefix / "lib/python3.11/site-packages");
        return prefix / "bin";
    }
    static std::ptrdiff_t place_of(const std::string& path) {
        const std::vector<std::string> places = library_places(kName, kPackages);
        const auto found = std::find(places.begin(), places.end(), path);
        return found == places.end() ? -1 : found - places.begin();
    }

    fs::path root{};
};

TEST_F(CudaLibraries, AreLookedForBesideTheProgramThenByTheLoaderThenElsewhere) {
    const Variable home("CUDA_HOME", (root / "cuda").string());
    const Variable path("PATH", make_python(root / "environment").string());
    const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
    const std::string name(kName);
    const std::vector<std::string> in_order{
        (folder / name).string(),
        (folder.parent_path() / "lib" / name).string(),
        name,
        (root / "cuda/lib64" / name).string(),
        "/usr/local/cuda/lib64/" + name,
        (root / "environment/lib/python3.11/site-packages/nvidia/cu13/lib" / name).string(),
        (root / "environment/lib/python3.11/site-packages/nvidia/cublas/lib" / name).string(),
    };
    std::ptrdiff_t last = -1;
    for (const std::string& place : in_order) {
        EXPECT_GT(place_of(place), last) << place;
        last = place_of(place);
    }
}

// A virtual environment's python3 is a link: its own packages come before the interpreter's.
TEST_F(CudaLibraries, AnEnvironmentsPackagesComeBeforeThoseOfItsInterpreter) {
    const fs::path real = make_python(root / "real");
    fs::create_directories(root / "venv/bin");
    fs::create_directories(root / "venv/lib/python3.11/site-packages");
    fs::create_symlink(real / "python3", root / "venv/bin/python3");
    const Variable path("PATH", "/nowhere:" + (root / "venv/bin").string() + ":" + real.string());
    const std::string below =
        "lib/python3.11/site-packages/nvidia/cublas/lib/" + std::string(kName);
    const std::ptrdiff_t own = place_of((root / "venv" / below).string());
    const std::ptrdiff_t behind = place_of((root / "real" / below).string());
    EXPECT_GE(own, 0);
    EXPECT_GT(behind, own);
}

TEST_F(CudaLibraries, WithoutAPythonThereAreTheOtherPlaces) {
    const Variable path("PATH", (root / "empty").string());
    EXPECT_GE(place_of(std::string(kName)), 0);
    for (const std::string& place : library_places(kName, kPackages))
        EXPECT_EQ(place.find("site-packages"), std::string::npos) << place;
}

TEST_F(CudaLibraries, NcclIsFoundWhereAnEnvironmentHasIt) {
    const fs::path bin = make_python(root / "environment");
    const fs::path lib = root / "environment/lib/python3.11/site-packages/nvidia/nccl/lib";
    const Variable path("PATH", bin.string());
    const std::string before = find_nccl();
    EXPECT_EQ(before.find(root.string()), std::string::npos);
    fs::create_directories(lib);
    std::ofstream(lib / "libnccl.so.2") << "not opened";
    if (before.empty()) {
        EXPECT_EQ(find_nccl(), (lib / "libnccl.so.2").string());
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
