#include "messages/weights.h"

#include "base/utf8.h"
#include "messages/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace pitstop::messages {
namespace {

using Problem = std::optional<std::string>;

Problem invalid_digest(std::string_view field, std::string_view digest) {
    const bool is_hex = std::all_of(digest.begin(), digest.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (digest.empty() || (digest.size() == 32 && is_hex)) return std::nullopt;
    return fmt::format(
        "{} is '{}'; accepted are 32 lower-case hex digits", field, utf8_prefix(digest, 64)
    );
}

// Whose configuration an adapter has.
enum class ConfigOf : std::uint8_t { kUpdate, kSession };

Problem invalid_adapter(const UpdateSpec& spec, ConfigOf config = ConfigOf::kUpdate) {
    if (spec.adapter.empty()) {
        if (!spec.adapter_config.empty())
            return "adapter_config is given without an adapter; name the adapter, or leave it out";
        if (!spec.adapter_config_digest.empty())
            return "adapter_config_digest is given without an adapter; name the adapter";
        if (spec.adapter_pinned) return "adapter_pinned is given without an adapter; name one";
        if (spec.adapter_policy != AdapterPolicy::kFinish)
            return "adapter_policy is given without an adapter; the model's weights have kv_policy";
        return std::nullopt;
    }
    if (auto problem = invalid_adapter_name(spec.adapter)) return problem;
    if (auto problem = invalid_digest("adapter_config_digest", spec.adapter_config_digest))
        return problem;
    if (spec.adapter_config.size() > kAdapterConfigTextMax) {
        return fmt::format(
            "adapter_config has {} bytes; at most {} are accepted",
            spec.adapter_config.size(),
            kAdapterConfigTextMax
        );
    }
    const bool is_needed = config == ConfigOf::kUpdate && spec.source.kind != SourceKind::kDisk;
    if (spec.adapter_config.empty() && is_needed && !spec.partial)
        return "adapter_config is empty; only a source of kind disk has a file instead, and a "
               "partial update keeps the version's";
    if (spec.mode != UpdateMode::kStaged) return "an adapter needs mode staged";
    if (spec.kv_policy != KvPolicy::kKeep)
        return "kv_policy is of the model's weights; an adapter's requests continue by "
               "adapter_policy: finish, keep or recompute";
    if (spec.epoch)
        return "epoch is for the model's weights; an adapter's version has the number of its "
               "update";
    return std::nullopt;
}

Problem invalid_spec(const UpdateSpec& spec, ConfigOf config) {
    if (auto problem = invalid_adapter(spec, config)) return problem;
    if (auto problem = invalid(spec.source)) return problem;
    if (auto problem = invalid_label(spec.label)) return problem;
    if (spec.epoch && (raw(*spec.epoch) < 1 || *spec.epoch > kEpochMax)) {
        return fmt::format("epoch is {}; accepted is [1, {}]", raw(*spec.epoch), raw(kEpochMax));
    }
    if (spec.manifest.size() > kManifestMax) {
        return fmt::format(
            "manifest has {} tensors; at most {} are accepted", spec.manifest.size(), kManifestMax
        );
    }
    for (const TensorInfo& tensor : spec.manifest) {
        if (tensor.name.empty()) return "manifest: a tensor without a name";
        if (auto problem = invalid_digest("manifest: digest of " + tensor.name, tensor.digest))
            return problem;
    }
    if (auto problem = invalid_digest("base_digest", spec.base_digest)) return problem;
    if (spec.source.format == TensorFormat::kSparse && spec.source.kind != SourceKind::kBuckets &&
        (spec.base_digest.empty() || !spec.partial)) {
        return "a sparse source needs base_digest and partial: it changes some elements of the "
               "version that it was made for";
    }
    return invalid_digest("digest", spec.digest);
}

}  // namespace

bool may_have_written(const std::vector<RankOutcome>& ranks) {
    return ranks.empty() || !std::ranges::all_of(ranks, [](const RankOutcome& rank) {
               return !rank.ok && rank.phase == UpdatePhase::kIdle;
           });
}

Problem invalid(const UpdateSpec& spec) { return invalid_spec(spec, ConfigOf::kUpdate); }

Problem invalid(const UpdateWeights& message) {
    if (message.update.source.kind == SourceKind::kBuckets)
        return "source.kind is buckets; only begin_update accepts that";
    // An unnamed call may be a bucket of an adapter's session, which has the configuration.
    return invalid_spec(message.update, message.unnamed ? ConfigOf::kSession : ConfigOf::kUpdate);
}

Problem invalid(const RefusedPart& message) {
    if (message.why.empty())
        return "why is empty; give the reason, which the refused call's "
               "trainer gets";
    return invalid_line("why", message.why);
}

Problem invalid(const BeginUpdate& message) {
    if (message.idle_timeout_ms < 0)
        return fmt::format("idle_timeout_ms is {}; accepted is 0 or more", message.idle_timeout_ms);
    if (auto problem = invalid_line("holder", message.holder)) return problem;
    if (message.update.source.kind != SourceKind::kBuckets)
        return "begin_update needs source.kind buckets; for a source with all tensors use "
               "update_weights";
    if (message.update.mode != UpdateMode::kStaged)
        return "begin_update needs mode staged; direct has no stage that could wait";
    return invalid(message.update);
}

Problem invalid(const UpdateBucket& message) {
    if (auto problem = invalid_label(message.label)) return problem;
    if (message.source.kind == SourceKind::kBuckets)
        return "source.kind is buckets; a bucket needs a source with its bytes";
    return invalid(message.source);
}

Problem invalid(const StageWeights& message) {
    if (message.update.mode != UpdateMode::kStaged)
        return "stage_weights needs mode staged; direct has no stage that could wait";
    if (message.update.source.kind == SourceKind::kBuckets)
        return "source.kind is buckets; a session begins with begin_update";
    return invalid(message.update);
}

Problem invalid(const CommitWeights& message) {
    if (auto problem = invalid_label(message.label)) return problem;
    if (auto problem = invalid_digest("digest", message.digest)) return problem;
    return std::nullopt;
}

Problem invalid(const RollbackWeights& message) {
    UpdateSpec spec;
    spec.adapter = message.adapter;
    spec.adapter_policy = message.adapter_policy;
    spec.kv_policy = message.kv_policy;
    return invalid_adapter(spec);
}

}  // namespace pitstop::messages
