// Writes weight versions into answers. Both engines identify a version by one name, and list the
// runs of output tokens of each. pitstop's own spans add the epoch, the digest, and the epochs of
// the KV that the tokens attended to.
#pragma once

#include "http_proc/format/json_writer.h"
#include "messages/generation.h"

#include <span>
#include <string>
#include <vector>

namespace pitstop::http {

// Returns the label, or "epoch N" for a version without a label. A word like SGLang's "default"
// would give different weights one name.
[[nodiscard]] std::string version_name(Epoch epoch, const std::string& label);

// Adds the spans of the next chunk; equal neighbours become one.
void append_spans(std::vector<messages::Span>& spans, std::vector<messages::Span> next);

// Writes [{"version", "start", "end"}], half-open over output tokens; neighbours differ.
void write_weight_versions(JsonWriter& json, std::span<const messages::Span> spans);
// Writes {"name", "version", "label", "digest"}.
void write_adapter_version(JsonWriter& json, const messages::AdapterVersion& adapter);
// Writes [{"version", "epoch", "digest", "start", "end", "kv_min_epoch", "kv_max_epoch"}]. A span
// with an adapter also has "adapter" and "kv_min_adapter".
void write_version_spans(JsonWriter& json, std::span<const messages::Span> spans);
// Writes "weight_version" (of the last token), "weight_versions" and "weight_version_spans".
void write_version_members(JsonWriter& json, std::span<const messages::Span> spans);

}  // namespace pitstop::http
