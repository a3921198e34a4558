// Logits of checkpoint directories, for tests/golden/compare_configs.py and compare_adapters.py. A
// line of JSON in, {"dir", "tp", "ep", "tokens", "prompts": [[id, ...], ...], "adapter": a
// directory or none, "greedy": number of greedy tokens}, a line out: {"logits":
// [prompt][position][id] in fp32, "greedy": [prompt][id]}, or {"error": why the directory or the
// adapter is not served}.
#include "base/isa.h"
#include "base/log.h"
#include "tests/tp_worker/test_replica.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kRowsMax = 256;  // of logits, at a time

using AdapterOfPrompt = std::optional<messages::AdapterId>;

Json logits_of(TestReplica* replica, const std::vector<TokenId>& ids, AdapterOfPrompt adapter) {
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back(static_cast<std::int32_t>(i));
    generate(replica, ids, 1, adapter);
    const auto vocab_len = static_cast<std::ptrdiff_t>(replica->vocab_len());
    Json logits = Json::array();
    for (std::size_t begin = 0; begin < rows.size(); begin += kRowsMax) {
        const auto some = std::span(rows).subspan(begin).first(
            std::min<std::size_t>(kRowsMax, rows.size() - begin)
        );
        const std::vector<float> all = replica->read_logits({some.begin(), some.end()});
        for (auto row = all.begin(); row != all.end(); row += vocab_len)
            logits.push_back(std::vector<float>(row, row + vocab_len));
    }
    return logits;
}

// Loads the adapter on every rank. Errors: the first rank's reason.
Result<messages::AdapterId> load_adapter(TestReplica* replica, int tp, const std::string& dir) {
    Pace pace{1.0};
    FaultPoint fault_point{"none"};
    constexpr messages::UpdateId kUpdate{1};
    messages::WorkerStage order{.update = kUpdate};
    order.spec.adapter = "one";
    order.spec.source.path = dir;
    std::vector<std::unique_ptr<Updater>> updaters;
    for (int rank = 0; rank < tp; ++rank) {
        updaters.push_back(std::make_unique<Updater>(replica->engine(rank), pace, fault_point));
        const auto vote = ask<messages::WorkerStaged>(*updaters.back(), order);
        if (!vote) return Error{ErrorCode::kInternal, "no vote"};
        if (!vote->outcome.ok)
            return Error{ErrorCode::kInvalidArgument, vote->outcome.problems.front()};
    }
    const messages::WorkerCommit commit{.update = kUpdate, .epoch = Epoch{2}};
    for (const auto& updater : updaters) {
        if (!ask<messages::WorkerCommitted>(*updater, commit))
            return Error{ErrorCode::kInternal, "no commit"};
    }
    return messages::AdapterId{static_cast<std::uint64_t>(kUpdate)};
}

Json answer(const Json& question) {
    ReplicaOptions options;
    options.engine.model_dir = question.at("dir");
    options.engine.compute = Compute::kFp32;
    options.engine.isa = best_isa();
    options.engine.page_size = 5;
    options.engine.max_total_tokens = question.value("tokens", 300);
    options.tp = question.value("tp", 1);
    options.engine.ep = question.value("ep", 1);
    auto replica = TestReplica::make(options);
    if (!replica) return {{"error", replica.error().message}};
    AdapterOfPrompt adapter;
    if (question.contains("adapter")) {
        const auto loaded = load_adapter(replica->get(), options.tp, question.at("adapter"));
        if (!loaded) return {{"error", loaded.error().message}};
        adapter = *loaded;
    }
    const std::int64_t num_greedy = question.value("greedy", 0);
    Json logits = Json::array();
    Json greedy = Json::array();
    for (const Json& prompt : question.at("prompts")) {
        const std::vector<TokenId> ids = ids_of(prompt);
        logits.push_back(logits_of(replica->get(), ids, adapter));
        greedy.push_back(Json::array());
        if (num_greedy == 0) continue;
        for (const TokenId id : generate(replica->get(), ids, num_greedy, adapter))
            greedy.back().push_back(raw(id));
    }
    return {{"logits", logits}, {"greedy", greedy}};
}

}  // namespace
}  // namespace pitstop::tp_worker

int main() {
    // Standard output has only answers.
    if (!pitstop::init_logging("config_logits", "error")) return 1;
    std::string line;
    while (std::getline(std::cin, line))
        std::cout << pitstop::tp_worker::answer(nlohmann::json::parse(line)).dump() << std::endl;
    return 0;
}
