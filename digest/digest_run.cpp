#include "digest/digest_run.h"

#include "base/check.h"
#include "base/isa.h"
#include "digest/levels.h"

namespace pitstop::digest {

AddRun add_run_on(IsaLevel level) {
    CHECK(level <= best_isa());
    switch (level) {
        case IsaLevel::kScalar:
            return scalar::add_run;
#if defined(__x86_64__)
        case IsaLevel::kAvx2:
            return avx2::add_run;
        case IsaLevel::kAvx512:
        case IsaLevel::kAvx512Bf16:
            return avx512::add_run;
#else
        default:
            break;
#endif
    }
    CHECK(false);
}

}  // namespace pitstop::digest
