// The names of an adapter's tensors, in one form: "model.layers.3.self_attn.q_proj.lora_A.weight".
//
// PEFT writes "base_model.model." in front of them. A live state dict has the adapter's own name
// ("lora_A.default.weight"); FSDP, Megatron and wrappers of vision models leave or drop parts.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::tp_worker {

// Returns the name in that form; one that is of no adapter comes back as some other name.
[[nodiscard]] std::string adapter_name_of(std::string_view name);

}  // namespace pitstop::tp_worker
