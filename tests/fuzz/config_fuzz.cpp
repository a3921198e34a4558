// config.json and generation_config.json of a checkpoint: the first line is the whole text of
// generation_config.json, the rest that of config.json. An accepted configuration has sizes that
// the engine may multiply, and frequencies for its positions.
#include "base/check.h"
#include "tp_worker/config/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop {
namespace {

constexpr std::int64_t kHeadDimTried = 4096;  // the largest head whose frequencies are computed

void parse(std::string_view text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view generation = text.substr(0, end);
    const auto config = tp_worker::ModelConfig::parse(
        text.substr(std::min(end + 1, text.size())), generation, "some/config.json"
    );
    if (!config) {
        CHECK(!config.error().message.empty());
        return;
    }
    CHECK(config->hidden > 0 && config->num_layers > 0);
    CHECK(config->ffn > 0 || (config->experts.num > 0 && config->experts.ffn > 0));
    CHECK(config->num_kv_heads > 0 && config->num_q_heads % config->num_kv_heads == 0);
    CHECK(config->head_dim > 0 && config->head_dim % 2 == 0);
    CHECK(config->vocab_len > 0 && config->context_len > 0);
    CHECK(std::ranges::is_sorted(config->eos_ids));
    CHECK(!difference_in_shape(*config, *config));
    if (config->head_dim > kHeadDimTried) return;
    for (const double frequency : rope_frequencies(config->rope, config->head_dim))
        CHECK(std::isfinite(frequency));
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    pitstop::parse({reinterpret_cast<const char*>(data), size});
    return 0;
}
