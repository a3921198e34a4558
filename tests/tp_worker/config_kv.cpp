// The KV of configurations, for tests/tree/test_memory_plan.py. A line with a config.json in, a
// line out: {"kv_elements": elements of KV per token, on all ranks}, or {"error": why the
// configuration is refused}.
#include "tp_worker/config/model_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>

namespace pitstop::tp_worker {
namespace {

nlohmann::json kv_of(const std::string& text) {
    const Result<ModelConfig> config = ModelConfig::parse(text, "", "model");
    if (!config) return {{"error", config.error().message}};
    const std::int64_t num_layers =
        std::ranges::count_if(config->layers, [](const LayerBlocks& blocks) {
            return std::ranges::find(blocks, BlockKind::kAttention) != blocks.end();
        });
    constexpr std::int64_t kKeyAndValue = 2;
    return {{"kv_elements", kKeyAndValue * num_layers * config->num_kv_heads * config->head_dim}};
}

}  // namespace
}  // namespace pitstop::tp_worker

int main() {
    std::string line;
    while (std::getline(std::cin, line))
        std::cout << pitstop::tp_worker::kv_of(line).dump() << std::endl;
    return 0;
}
