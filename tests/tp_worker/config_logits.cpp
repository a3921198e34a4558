// Logits of checkpoint directories, for tests/golden/compare_configs.py. A line of JSON in,
// {"dir", "tp", "ep", "tokens", "prompts": [[id, ...], ...]}, a line out: {"logits":
// [prompt][position][id]} in fp32, or {"error": why the directory is not served}.
#include "base/isa.h"
#include "base/log.h"
#include "tests/tp_worker/test_replica.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kRowsMax = 256;  // of logits, at a time

Json logits_of(TestReplica* replica, const Json& prompt) {
    std::vector<TokenId> ids;
    std::vector<std::int32_t> rows;
    for (const int id : prompt) {
        rows.push_back(static_cast<std::int32_t>(ids.size()));
        ids.push_back(static_cast<TokenId>(id));
    }
    generate(replica, ids, 1);
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
    Json logits = Json::array();
    for (const Json& prompt : question.at("prompts"))
        logits.push_back(logits_of(replica->get(), prompt));
    return {{"logits", logits}};
}

}  // namespace
}  // namespace pitstop::tp_worker

int main() {
    // Answers alone go to standard output.
    if (!pitstop::init_logging("config_logits", "error")) return 1;
    std::string line;
    while (std::getline(std::cin, line))
        std::cout << pitstop::tp_worker::answer(nlohmann::json::parse(line)).dump() << std::endl;
    return 0;
}
