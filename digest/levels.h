// Declares add_run.cpp's functions, once per level.
#pragma once

#include "digest/digest_run.h"

namespace pitstop::digest {

namespace scalar {
void add_run(const DigestRun& run, DigestSum& sum);
}
namespace avx2 {
void add_run(const DigestRun& run, DigestSum& sum);
}
namespace avx512 {
void add_run(const DigestRun& run, DigestSum& sum);
}

}  // namespace pitstop::digest
