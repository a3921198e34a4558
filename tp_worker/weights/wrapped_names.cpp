#include "tp_worker/weights/wrapped_names.h"

#include <array>

namespace pitstop::tp_worker {
namespace {

// The prefixes of DistributedDataParallel and DeepSpeed, torch.compile, FSDP, PEFT, and of a model
// inside a model.
constexpr std::array<std::string_view, 7> kWrappers{
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "base_model.model.",
    "language_model.",
    "transformer."};

}  // namespace

std::string_view wrapper_of(const WeightLayout& layout, std::string_view name) {
    const std::string_view whole = name;
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        if (layout.find(name) != nullptr || layout.is_tied_head(name)) break;
        for (const std::string_view wrapper : kWrappers) {
            if (!name.starts_with(wrapper)) continue;
            name.remove_prefix(wrapper.size());
            goes_on = true;
            break;
        }
    }
    if (layout.find(name) == nullptr && !layout.is_tied_head(name)) return {};
    return whole.substr(0, whole.size() - name.size());
}

}  // namespace pitstop::tp_worker
