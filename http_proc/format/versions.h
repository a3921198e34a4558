// Writes weight versions into answers. Both engines identify a version by one name and list runs
// of output tokens with it. pitstop's own spans add the epoch, the digest, and the epochs of the KV
// attended to.
#pragma once

#include "http_proc/format/json_writer.h"
#include "messages/generation.h"

#include <span>
#include <string>
#include <vector>

namespace pitstop::http {

// The label, or "epoch N" for a version without one. A common word, such as SGLang's "default",
// would give different weights one name.
[[nodiscard]] std::string version_name(Epoch epoch, const std::string& label);

// Adds the spans of the next chunk; equal neighbours become one.
void append_spans(std::vector<messages::Span>& spans, std::vector<messages::Span> next);

// Writes [{"version", "start", "end"}]: half-open, over output tokens, neighbours differ.
void write_weight_versions(JsonWriter& json, std::span<const messages::Span> spans);
// Writes {"name", "version", "label", "digest"}.
void write_adapter_version(JsonWriter& json, const messages::AdapterVersion& adapter);
// Writes [{"version", "epoch", "digest", "start", "end", "kv_min_epoch", "kv_max_epoch"}], with an
// adapter also "adapter" and "kv_min_adapter".
void write_version_spans(JsonWriter& json, std::span<const messages::Span> spans);
// Writes the members "weight_version" (the last), "weight_versions" and "weight_version_spans".
void write_version_members(JsonWriter& json, std::span<const messages::Span> spans);

}  // namespace pitstop::http
