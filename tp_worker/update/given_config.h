// The configuration that an update brings for its adapter: in the call, or in the directory of its
// source, whose files are watched from before the configuration is read.
//
// Thread: any, one at a time.
#pragma once

#include "base/result.h"
#include "checkpoint/seen_files.h"
#include "messages/weights.h"

#include <optional>
#include <string>

namespace pitstop::tp_worker {

struct GivenConfig {
    std::string where{};  // names the configuration in errors
    std::string text{};
    std::optional<Error> none{};  // why the update brings no configuration
    // The files of the adapter, as they were before the configuration was read.
    checkpoint::SeenFiles files{};

    // Errors: a file that exists cannot be read, or is too large.
    static Result<GivenConfig> read(const messages::UpdateSpec& spec);
};

}  // namespace pitstop::tp_worker
