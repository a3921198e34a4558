#include "tests/emulated_gpu/settings.h"

#include "tests/emulated_gpu/blocks.h"

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace pitstop::emulator {
namespace {

// By default a context uses one part in kOwnShare of a GPU's memory, and so does a communicator. On
// an H200 of 150 GB a context uses 0.5 GB and a communicator of one rank 0.6 GB
// (bench/results/gpu/first_1.md).
constexpr std::int64_t kOwnShare = 256;

std::string text_of(const char* name, const std::string& otherwise) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : otherwise;
}

std::int64_t number_of(
    const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most
) {
    const char* const text = std::getenv(name);
    if (text == nullptr) return otherwise;
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > most) {
        fail(
            std::string(name) + " takes " + std::to_string(least) + " to " + std::to_string(most) +
            ", not '" + text + "'"
        );
    }
    return value;
}

Policy policy_of(const std::string& text) {
    if (text == "late") return Policy::kLate;
    if (text == "early") return Policy::kEarly;
    if (text == "random") return Policy::kRandom;
    fail("PITSTOP_EMULATED_POLICY takes late, early or random, not '" + text + "'");
}

bool runs_grids_together(const std::string& text) {
    if (text == "many") return true;
    if (text == "one") return false;
    fail("PITSTOP_EMULATED_GRIDS takes many or one, not '" + text + "'");
}

// Source: CUDA C++ Programming Guide, "CUDA Environment Variables", CUDA_VISIBLE_DEVICES: the
// GPUs listed before the first invalid index are visible.
std::vector<int> visible_of(int num_gpus) {
    std::vector<int> visible;
    const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
        for (int gpu = 0; gpu < num_gpus; ++gpu) visible.push_back(gpu);
        return visible;
    }
    std::istringstream list(text);
    for (std::string one; std::getline(list, one, ',');) {
        char* end = nullptr;
        const long gpu = std::strtol(one.c_str(), &end, 10);
        if (end == one.c_str() || *end != '\0' || gpu < 0 || gpu >= num_gpus) break;
        visible.push_back(static_cast<int>(gpu));
    }
    return visible;
}

Settings read_settings() {
    std::vector<int> visible =
        visible_of(static_cast<int>(number_of("PITSTOP_EMULATED_GPUS", 1, 0, 64)));
    const int num_visible = static_cast<int>(visible.size());
    const std::int64_t memory_bytes = number_of(
        "PITSTOP_EMULATED_MEMORY",
        std::int64_t{1} << 30,
        std::int64_t{2} << 20,
        std::int64_t{1} << 40
    );
    return {
        .visible = std::move(visible),
        .num_gpus = num_visible,
        .memory_bytes = memory_bytes,
        .code_bytes =
            number_of("PITSTOP_EMULATED_CODE", std::int64_t{4} << 10, 0, std::int64_t{1} << 30),
        .context_bytes =
            number_of("PITSTOP_EMULATED_CONTEXT", memory_bytes / kOwnShare, 0, memory_bytes),
        .nccl_bytes = number_of("PITSTOP_EMULATED_NCCL", memory_bytes / kOwnShare, 0, memory_bytes),
        .runs_grids_together = runs_grids_together(text_of("PITSTOP_EMULATED_GRIDS", "many")),
        .has_peer_access = number_of("PITSTOP_EMULATED_PEERS", 1, 0, 1) == 1,
        .machine = text_of(
            "PITSTOP_EMULATED_MACHINE", "/dev/shm/pitstop-emulated-gpus-" + std::to_string(getuid())
        ),
        .policy = policy_of(text_of("PITSTOP_EMULATED_POLICY", "random")),
        .seed = static_cast<std::uint64_t>(
            number_of("PITSTOP_EMULATED_SEED", 1, 0, std::int64_t{1} << 62)
        ),
        .has_tolls = number_of("PITSTOP_EMULATED_TOLLS", 0, 0, 1) == 1,
        .faults = text_of("PITSTOP_EMULATED_FAULTS", ""),
    };
}

}  // namespace

const Settings& settings() {
    static const Settings read = read_settings();
    return read;
}

}  // namespace pitstop::emulator
