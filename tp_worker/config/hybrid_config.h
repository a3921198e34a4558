// Reads the keys of families that have layers with a recurrent state (Qwen3-Next, Qwen3.5): which
// layers those are, and the sizes of their gated delta nets. Also finds the text model's part of a
// configuration that includes a vision model.
//
// Source: transformers 5.24, models/{qwen3_next,qwen3_5,qwen3_5_moe}/configuration_*.py.
#pragma once

#include "tp_worker/config/config_reader.h"
#include "tp_worker/config/families.h"
#include "tp_worker/config/model_config.h"

#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

// Reads the sizes of gated delta nets and the layers that have one, and refuses the settings that
// no block computes. REQUIRES: a family with is_hybrid; the number of layers is read.
void read_hybrid(ConfigReader& reader, const Family& family, ModelConfig* config);

// Returns the object with the model's keys: `config`, or the text_config inside `config`. Reports a
// problem and returns null if there is neither.
[[nodiscard]] const ConfigReader::Json* find_text_config(
    const ConfigReader::Json& config, const Family& family, ConfigReader& reader
);

// Reads tie_word_embeddings, which a wrapping configuration may have at either level. REQUIRES:
// `text` reads the text's part, or is `outer`.
[[nodiscard]] bool read_tied_embeddings(ConfigReader& outer, ConfigReader& text);

}  // namespace pitstop::tp_worker
