#include "tp_worker/update/given_config.h"

#include "base/mapped_file.h"
#include "tp_worker/config/adapter_config.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::tp_worker {

Result<GivenConfig> GivenConfig::read(const messages::UpdateSpec& spec) {
    GivenConfig given{.where = "adapter_config", .text = spec.adapter_config};
    if (!given.text.empty()) return given;
    if (spec.source.kind != messages::SourceKind::kDisk || spec.source.path.empty()) {
        given.none = Error{ErrorCode::kInvalidArgument, "the update brings no adapter_config"};
        return given;
    }
    given.where = spec.source.path + "/adapter_config.json";
    given.files.look(given.where);
    for (const char* file : {"adapter_model.safetensors", "adapter_model.bin"})
        given.files.look(fmt::format("{}/{}", spec.source.path, file));
    Result<std::string> text = MappedFile::read(given.where, kAdapterConfigBytesMax);
    if (text) {
        given.text = *std::move(text);
    } else if (text.error().code == ErrorCode::kNotFound) {
        given.none = text.error();
    } else {
        return text.error();
    }
    return given;
}

}  // namespace pitstop::tp_worker
