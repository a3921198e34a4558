// The metrics that only some trees have: of recurrent states, adapters, drafts and experts. Each
// function writes nothing if the status lacks its part.
#pragma once

#include "http_proc/observe/metrics_writer.h"
#include "messages/status.h"

#include <string_view>

namespace pitstop::http::metrics {

void write_checkpoints(Writer& out, const messages::StatusReply& status);
void write_adapters(Writer& out, const messages::StatusReply& status);
void write_drafts(Writer& out, std::string_view model, const messages::StatusReply& status);
// Writes four numbers per layer, for up to kLoadRowsMax layers.
void write_experts(Writer& out, const messages::StatusReply& status);

}  // namespace pitstop::http::metrics
