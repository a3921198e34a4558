// Finds the files in a zip archive whose files are not compressed: those of torch.save.
//
// Thread:  any.
// Bounded: ReadLimits: kZipOthersMax files more than tensors; kZipEntryBytesMax of each.
// Source:  PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5.3 (zip64).
#pragma once

#include "base/result.h"
#include "checkpoint/open_file.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::checkpoint {

inline constexpr std::uint64_t kZipOthersMax = 64;  // torch.save writes about six
inline constexpr std::uint64_t kZipEntryBytesMax = 4096;

struct ZipEntry {
    std::string name{};
    std::int64_t begin = 0;  // of its bytes in the archive
    std::int64_t bytes = 0;
};

// Returns the archive's files, in the order of its directory. All their bytes are within
// `file_bytes`; two files may share bytes. Errors: kDataLoss (the archive ends early), kMalformed,
// kUnsupported (compressed or encrypted files, several disks), kTooLarge, kAborted.
[[nodiscard]] Result<std::vector<ZipEntry>> read_zip_entries(const OpenFile& args);

}  // namespace pitstop::checkpoint
