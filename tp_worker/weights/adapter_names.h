// The names of an adapter's tensors, in one form: "model.layers.3.self_attn.q_proj.lora_A.weight".
//
// PEFT puts "base_model.model." in front. A live state dict contains the adapter's own name
// ("lora_A.default.weight"). FSDP, Megatron and wrappers of vision models add or drop parts.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::tp_worker {

// Returns the name in the form above. A name that is not an adapter's stays an unknown name.
[[nodiscard]] std::string adapter_name_of(std::string_view name);

}  // namespace pitstop::tp_worker
