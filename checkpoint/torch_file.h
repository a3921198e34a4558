// Finds the tensors in a file of torch.save: a zip archive with a pickle of the tensors' shapes,
// which the restricted reader reads (nothing in it is executed), and a file for each storage.
//
// Thread:  any.
// Bounded: ReadLimits, read_zip_entries()'s and the pickle reader's bounds.
// Source:  torch.serialization and torch._utils of PyTorch 1.6 to 2.15.
#pragma once

#include "base/result.h"
#include "checkpoint/open_file.h"
#include "checkpoint/safetensors_header.h"

#include <vector>

namespace pitstop::checkpoint {

// Returns the tensors of the dict that was saved, in its order; StoredTensor::file is 0. Two
// tensors may share bytes. Errors: those of read_zip_entries() and of pickle::read(); kMalformed,
// kUnsupported (another format of torch.save, a value that is no tensor, a tensor that is not
// contiguous, big-endian machines), kTooLarge, kDataLoss.
[[nodiscard]] Result<std::vector<StoredTensor>> read_torch_file(const OpenFile& args);

}  // namespace pitstop::checkpoint
