#include "tp_worker/update/adapter_store.h"

#include "base/check.h"
#include "base/digest.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/time.h"
#include "base/utf8.h"
#include "messages/codec.h"
#include "tp_worker/config/adapter_config.h"
#include "tp_worker/config/module_search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <linux/magic.h>
#include <string>
#include <string_view>
#include <sys/vfs.h>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Answers = std::vector<messages::Frames>;

Error no_such_version() {
    return {ErrorCode::kDataLoss, "this rank does not have the version that the update changes"};
}

// A hybrid model's checkpoint may be of the model with vision (TensorNames::kOfHybrid).
ModulePaths paths_of(const Engine& engine) {
    return engine.config().is_hybrid() ? ModulePaths::kOwnOrOfVision : ModulePaths::kOwn;
}

// PEFT says nothing about such patterns, which are most likely a mistake.
void warn_of_idle_patterns(const ModuleSearch& search, std::string_view adapter) {
    constexpr std::size_t kShownMax = 8;
    constexpr std::size_t kBytesShown = 200;  // of each
    std::vector<std::string> idle = search.idle_patterns();
    if (idle.empty()) return;
    const std::size_t num = idle.size();
    idle.resize(std::min(num, kShownMax));
    for (std::string& each : idle) each.resize(utf8_prefix(each, kBytesShown).size());
    spdlog::warn(
        "adapter '{}': {} patterns decide about no adapted module: {}{}",
        adapter,
        num,
        fmt::join(idle, ", "),
        num > kShownMax ? ", ..." : ""
    );
}

// Writes the adapter's tensors, from host or GPU memory.
Result<> write_to(AdapterFile& file, const std::string& directory, const Adapter& adapter) {
    return file.write(
        directory,
        adapter.layout().bytes(),
        [&](std::int64_t begin, std::span<std::byte> out) { adapter.memory().fetch(begin, out); }
    );
}

}  // namespace

void StagedAdapter::describe_in(messages::WorkerStaged& vote) const {
    if (!adapter) return;
    vote.adapter_config_digest = config_digest;
    vote.adapter_bytes = adapter->bytes();
}

Result<> AdapterStore::finish(WeightStage& stage, const StagedAdapter& staged) const {
    RETURN_IF_ERROR(stage.finish());
    RETURN_IF_ERROR(staged.files.are_unchanged());
    return staged.adapter ? engine_.place(*staged.adapter) : Ok{};
}

void AdapterStore::keep_in(AdapterKeeper::Args args) {
    keeper_ = std::make_unique<AdapterKeeper>(std::move(args));
}

void AdapterStore::limit(Limits limits) {
    limits_ = std::move(limits);
    struct statfs info {};
    if (limits_.bytes_max == 0 || ::statfs(limits_.directory.c_str(), &info) != 0) return;
    const bool is_in_memory = info.f_type == TMPFS_MAGIC;
    spdlog::info(
        "evicted adapters go to {}{}",
        limits_.directory,
        is_in_memory ? ", which is a tmpfs: their bytes stay in the host's memory" : ""
    );
}

// Waits until all versions that were to be evicted or forgotten so far have freed their memory.
void AdapterStore::wait_for_moves() const {
    const auto are_done = std::make_shared<std::promise<void>>();
    const std::future<void> done = are_done->get_future();
    moving_.give([are_done] {
        are_done->set_value();
        return Answers{};
    });
    done.wait();
}

Result<StagedAdapter> AdapterStore::open(
    const messages::UpdateSpec& spec,
    std::optional<messages::AdapterId> begins_as,
    const std::atomic<bool>& is_dropped
) const {
    ASSIGN_OR_RETURN(GivenConfig given, GivenConfig::read(spec));
    if (begins_as) return open_as(*begins_as, spec, std::move(given), is_dropped);
    if (given.none) return *given.none;
    return make(spec, std::move(given), is_dropped);
}

Result<StagedAdapter> AdapterStore::open_as(
    messages::AdapterId version,
    const messages::UpdateSpec& spec,
    GivenConfig given,
    const std::atomic<bool>& is_dropped
) const {
    const std::shared_ptr<Version> base = version_of(version);
    if (!base) return no_such_version();
    if (!given.none && given.text != base->config) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the update of adapter '{}' is partial and brings another adapter_config than the "
            "version that it changes; leave it out, or send the adapter whole",
            spec.adapter
        );
    }
    given.text = base->config;
    ASSIGN_OR_RETURN(StagedAdapter staged, make(spec, std::move(given), is_dropped));
    RETURN_IF_ERROR(copy(version, *base, *staged.adapter));
    return staged;
}

// Copies a version's bytes from memory or from its file, after the moves ordered so far.
Result<> AdapterStore::copy(messages::AdapterId id, const Version& version, Adapter& into) const {
    const auto copied = std::make_shared<std::promise<Result<>>>();
    std::future<Result<>> done = copied->get_future();
    moving_.give([this, id, &version, &into, copied] {
        if (const std::shared_ptr<const Adapter> adapter = engine_.adapters().share(id)) {
            into.copy(*adapter);
            copied->set_value(Ok{});
        } else if (version.file->is_written()) {
            const auto num = static_cast<std::size_t>(into.layout().bytes());
            copied->set_value(version.file->read({into.staged().data(), num}));
        } else {
            copied->set_value(no_such_version());
        }
        return Answers{};
    });
    return done.get();
}

std::shared_ptr<AdapterStore::Version> AdapterStore::version_of(messages::AdapterId id) const {
    const MutexLock lock(mutex_);
    const auto found = versions_.find(id);
    return found == versions_.end() ? nullptr : found->second;
}

Result<StagedAdapter> AdapterStore::make(
    const messages::UpdateSpec& spec, GivenConfig given, const std::atomic<bool>& is_dropped
) const {
    StagedAdapter staged{
        .config = std::move(given.text),
        .files = std::move(given.files),
        .name = spec.adapter,
        .is_pinned = spec.adapter_pinned};
    staged.config_digest = to_hex(digest_of(staged.config));
    if (const std::string& expected = spec.adapter_config_digest;
        !expected.empty() && staged.config_digest != expected) {
        return make_error(
            ErrorCode::kDataLoss,
            "{} has the digest {} instead of {} (adapter_config_digest)",
            given.where,
            staged.config_digest,
            expected
        );
    }
    ASSIGN_OR_RETURN(const AdapterConfig config, AdapterConfig::parse(staged.config, given.where));
    ModuleSearch search(config, paths_of(engine_), MatchSteps(&is_dropped));
    ASSIGN_OR_RETURN(staged.adapter, engine_.make_adapter(search));
    if (raw(engine_.rank()) == 0) warn_of_idle_patterns(search, spec.adapter);
    RETURN_IF_ERROR(check_room(staged));
    reach_fault_point("stage", "adapter");
    wait_for_moves();
    RETURN_IF_ERROR(staged.adapter->allocate());
    return staged;
}

// Refuses a version that does not fit beside the pinned ones. Pinned versions of the same name do
// not count, because the new one replaces them.
Result<> AdapterStore::check_room(const StagedAdapter& staged) const {
    if (limits_.bytes_max == 0) return Ok{};
    std::int64_t pinned_bytes = 0;
    {
        const MutexLock lock(mutex_);
        for (const auto& [id, version] : versions_) {
            if (version->is_pinned && version->name != staged.name) pinned_bytes += version->bytes;
        }
    }
    if (pinned_bytes + staged.adapter->bytes() <= limits_.bytes_max) return Ok{};
    return make_error(
        ErrorCode::kResourceExhausted,
        "adapter '{}' needs {} bytes beside {} bytes of pinned adapters; a worker has {} bytes for "
        "adapters (--adapter-memory)",
        staged.name,
        staged.adapter->bytes(),
        pinned_bytes,
        limits_.bytes_max
    );
}

void AdapterStore::commit(messages::AdapterId id, StagedAdapter staged) {
    const std::shared_ptr<Adapter> adapter = std::move(staged.adapter);
    const auto kept = keeper_ ? std::make_shared<AdapterBytes>(adapter) : nullptr;
    auto version = std::make_shared<Version>();
    version->kept = kept;
    version->name = std::move(staged.name);
    version->is_pinned = staged.is_pinned;
    version->bytes = adapter->bytes();
    version->config = staged.config;
    {
        const MutexLock lock(mutex_);
        for (const auto& [other, replaced] : versions_) {
            if (replaced->name == version->name) replaced->is_pinned = false;
        }
        CHECK(versions_.emplace(id, std::move(version)).second);
    }
    if (keeper_) keeper_->keep(id, kept, std::move(staged.config));
    engine_.adapters().add(id, adapter);
}

void AdapterStore::move(const messages::WorkerAdapters& order) {
    for (const messages::AdapterId id : order.evict) evict(order.order, id);
    for (const messages::AdapterId id : order.restore) restore(order.order, id);
}

void AdapterStore::evict(std::uint64_t order, messages::AdapterId id) {
    const MutexLock lock(mutex_);
    const auto found = versions_.find(id);
    if (found == versions_.end()) return;
    moving_.give([this, order, id, version = found->second] {
        const std::shared_ptr<Adapter> adapter = engine_.adapters().take_out(id);
        if (!adapter) return Answers{};
        if (!version->file->is_written()) {
            reach_fault_point("evict", "adapter");
            const Result<> written = write_to(*version->file, limits_.directory, *adapter);
            if (!written) {
                messages::WorkerNotEvicted answer{.rank = engine_.rank(), .order = order, .id = id};
                answer.verdict = written.error();
                stay(*version, adapter, answer);
                return Answers{};
            }
        }
        if (version->kept) version->kept->leave_memory(version->file);
        return Answers{};
    });
}

// Keeps a version in memory, because it could not be evicted.
void AdapterStore::stay(
    const Version& version,
    const std::shared_ptr<Adapter>& adapter,
    const messages::WorkerNotEvicted& why
) {
    spdlog::warn("adapter '{}' stays in memory: {}", version.name, why.verdict.message);
    engine_.adapters().add(why.id, adapter);
    background_.answer(encode(why));
}

void AdapterStore::restore(std::uint64_t order, messages::AdapterId id) {
    const TimePoint begin = Clock::now();
    moving_.give([this, order, id, begin, version = version_of(id)] {
        reach_fault_point("restore", "adapter");
        messages::WorkerRestored answer;
        answer.rank = engine_.rank();
        answer.order = order;
        answer.id = id;
        Result<> restored =
            version ? restore_from(id, *version)
                    : Result<>(Error{ErrorCode::kDataLoss, "this rank has no such adapter"});
        if (!restored) answer.verdict = std::move(restored).error();
        answer.elapsed_us =
            std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
        background_.answer(encode(answer));
        return Answers{};
    });
}

Result<> AdapterStore::restore_from(messages::AdapterId id, const Version& version) {
    if (engine_.adapters().find(id) != nullptr) return Ok{};  // its file could not be written
    ASSIGN_OR_RETURN(
        const AdapterConfig config, AdapterConfig::parse(version.config, "adapter_config")
    );
    ModuleSearch search(config, paths_of(engine_));
    ASSIGN_OR_RETURN(std::shared_ptr<Adapter> adapter, engine_.make_adapter(search));
    const auto num = static_cast<std::size_t>(adapter->layout().bytes());
    RETURN_IF_ERROR(adapter->allocate());
    RETURN_IF_ERROR(version.file->read({adapter->staged().data(), num}));
    RETURN_IF_ERROR(engine_.place(*adapter));
    engine_.adapters().add(id, std::move(adapter));
    return Ok{};
}

void AdapterStore::unpin(messages::AdapterId id) {
    const MutexLock lock(mutex_);
    if (const auto found = versions_.find(id); found != versions_.end())
        found->second->is_pinned = false;
}

void AdapterStore::forget(messages::AdapterId id) {
    if (keeper_) keeper_->forget(id);
    std::shared_ptr<Version> version;
    {
        const MutexLock lock(mutex_);
        if (auto entry = versions_.extract(id); !entry.empty()) version = std::move(entry.mapped());
    }
    std::shared_ptr<Adapter> adapter = engine_.adapters().take_out(id);
    moving_.give([this, id, version = std::move(version), adapter = std::move(adapter)] {
        static_cast<void>(engine_.adapters().take_out(id)
        );  // a restore may have added the adapter meanwhile
        return Answers{};
    });
}

}  // namespace pitstop::tp_worker
