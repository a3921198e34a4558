// A checkpoint directory as a source: every rank reads it for itself.
#pragma once

#include "tp_worker/source.h"

namespace pitstop {

// Errors: what Checkpoint::open says; another model.
Result<> deliver_disk(const SourceArgs& args);

}  // namespace pitstop
