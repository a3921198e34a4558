// A checkpoint directory as a source: every rank reads it for itself.
#pragma once

#include "tp_worker/sources/source.h"

namespace pitstop::tp_worker {

// Errors: those of Checkpoint::open; another model; files that changed while they were read.
Result<> deliver_disk(const SourceArgs& args);

}  // namespace pitstop::tp_worker
