#include "tp_worker/update/adapter_store.h"

#include "base/digest.h"
#include "base/mapped_file.h"
#include "tp_worker/config/adapter_config.h"

#include <utility>
#include <vector>

namespace pitstop::tp_worker {

void AdapterStore::keep_in(AdapterKeeper::Args args) {
    keeper_ = std::make_unique<AdapterKeeper>(std::move(args));
}

Result<StagedAdapter> AdapterStore::open(const messages::UpdateSpec& spec) const {
    StagedAdapter staged{.config = spec.adapter_config};
    std::string where = "adapter_config";
    if (staged.config.empty()) {
        where = spec.source.path + "/adapter_config.json";
        ASSIGN_OR_RETURN(staged.config, MappedFile::read(where, kAdapterConfigBytesMax));
    }
    staged.config_digest = to_hex(digest_of(staged.config));
    if (const std::string& expected = spec.adapter_config_digest;
        !expected.empty() && staged.config_digest != expected) {
        return make_error(
            ErrorCode::kDataLoss,
            "{} has the digest {} instead of {} (adapter_config_digest)",
            where,
            staged.config_digest,
            expected
        );
    }
    ASSIGN_OR_RETURN(const AdapterConfig config, AdapterConfig::parse(staged.config, where));
    ASSIGN_OR_RETURN(staged.adapter, engine_.make_adapter(config));
    return staged;
}

void AdapterStore::commit(messages::AdapterId id, StagedAdapter staged) {
    const std::shared_ptr<Adapter> adapter = std::move(staged.adapter);
    if (keeper_) keeper_->keep(id, adapter, std::move(staged.config));
    engine_.adapters().add(id, adapter);
}

void AdapterStore::forget(messages::AdapterId id) {
    if (keeper_) keeper_->forget(id);
    std::shared_ptr<Adapter> adapter = engine_.adapters().take_out(id);
    if (!adapter) return;
    background_.give([adapter = std::move(adapter)] { return std::vector<messages::Frames>{}; });
}

}  // namespace pitstop::tp_worker
