#include "tp_worker/weights/adapter_names.h"

#include <array>
#include <cstddef>

namespace pitstop::tp_worker {
namespace {

constexpr std::array<std::string_view, 6> kPrefixes{
    "base_model.model.",
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "language_model."};
// Parts of a name that wrappers insert, and that do not belong to the module's path.
constexpr std::array<std::string_view, 2> kWithin{"._fsdp_wrapped_module.", ".language_model."};
constexpr std::string_view kBaseLayer = ".base_layer.";

void drop_prefixes(std::string& name) {
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (const std::string_view prefix : kPrefixes) {
            if (!name.starts_with(prefix)) continue;
            name.erase(0, prefix.size());
            goes_on = true;
        }
    }
}

// Removes PEFT's wrappers. One belongs to the path: the first of two packed parameters of experts
// that PEFT wraps is ".experts.base_layer.lora_A".
void drop_base_layers(std::string& name) {
    for (std::size_t at = 0; (at = name.find(kBaseLayer, at)) != std::string::npos;) {
        const std::string_view all(name);
        const bool is_inner = all.substr(0, at).ends_with(".experts") &&
                              all.substr(at + kBaseLayer.size()).starts_with("lora_");
        if (is_inner) return;
        name.replace(at, kBaseLayer.size(), ".");
    }
}

// Removes the trainer's own name of the adapter: "default" in ".lora_A.default.weight".
void drop_own_name(std::string& name, std::string_view which) {
    constexpr std::string_view kEnd = ".weight";
    const std::size_t at = name.rfind(which);
    if (at == std::string::npos || !name.ends_with(kEnd)) return;
    const std::size_t begin = at + which.size();
    const std::size_t end = name.size() - kEnd.size();
    if (begin < end) name.erase(begin, end - begin);
}

}  // namespace

std::string adapter_name_of(std::string_view given) {
    std::string name(given);
    drop_prefixes(name);
    for (const std::string_view within : kWithin) {
        for (std::size_t at = 0; (at = name.find(within)) != std::string::npos;)
            name.replace(at, within.size(), ".");
    }
    drop_base_layers(name);
    drop_own_name(name, ".lora_A");
    drop_own_name(name, ".lora_B");
    if (name.starts_with("layers.")) name.insert(0, "model.");
    return name;
}

}  // namespace pitstop::tp_worker
