// Identifies weights by their digests: SGLang's /weights_checker and vLLM's /weight_checker.
//
// Both engines can also overwrite weights with noise, so that a test can check that an update
// sends every tensor. Here the weights are dropped instead: generation stops until a complete
// update.
#include "base/utf8.h"
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <span>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMismatchesShown = 64;

Response checker_failure(const Error& error) { return error_response(Dialect::kVllm, error); }

Task<Result<messages::DigestsReply>> digests(Exchange& exchange) {
    co_return control::checked(
        co_await exchange.tree().call(messages::WeightDigests{}, control::kTimeout)
    );
}

// Like any release, refused while requests are open without a pause.
Task<Result<messages::MemoryReply>> drop_weights(Exchange& exchange) {
    const std::vector<messages::MemoryTag> tags{messages::MemoryTag::kWeights};
    Result<messages::MemoryReply> released =
        co_await control::release(exchange, tags, /*keep_weights=*/false);
    if (!released) co_return released;
    co_return co_await control::resume(exchange, tags);
}

// ---- SGLang ----

Json ranks_of(const messages::DigestsReply& reply, const messages::HelloReply& hello) {
    Json checksums = Json::object();
    for (const messages::TensorInfo& tensor : reply.tensors)
        checksums[tensor.name] = tensor.digest.substr(0, 16);  // lane 0
    // Digests are of whole tensors, so the engine counts as one rank here.
    return {
        {{"checksums", std::move(checksums)},
         {"per_gpu_checksum", reply.digest},
         {"parallelism_info",
          {{"tp_rank", 0},
           {"tp_size", hello.tp},
           {"dp_rank", 0},
           {"dp_size", hello.replicas},
           {"pp_rank", 0},
           {"pp_size", 1},
           {"rank", 0},
           {"size", hello.tp * hello.replicas}}}}};
}

std::vector<std::string> mismatches(
    const messages::DigestsReply& before, const messages::DigestsReply& now
) {
    std::map<std::string_view, std::string_view> known;
    for (const messages::TensorInfo& tensor : before.tensors) known[tensor.name] = tensor.digest;
    std::vector<std::string> found;
    for (const messages::TensorInfo& tensor : now.tensors) {
        const auto place = known.find(tensor.name);
        if (place != known.end() && place->second == tensor.digest) continue;
        found.push_back(fmt::format(
            "name={} digest={} was={}",
            tensor.name,
            tensor.digest,
            place == known.end() ? "absent" : place->second
        ));
    }
    return found;
}

Task<Response> checksum(Exchange& exchange) {
    const Result<messages::DigestsReply> now = co_await digests(exchange);
    if (!now) co_return sglang_failure(now.error());
    co_return Response::json(
        200,
        {{"success", true},
         {"message", "Success."},
         {"ranks", ranks_of(*now, exchange.tree().hello())},
         {"per_engine_checksum", now->digest}}
    );
}

Task<Response> snapshot(Exchange& exchange) {
    Result<messages::DigestsReply> now = co_await digests(exchange);
    if (!now) co_return sglang_failure(now.error());
    const Json answer{
        {"success", true}, {"message", "Success."}, {"per_engine_checksum", now->digest}};
    exchange.server().weights_snapshot = *std::move(now);
    co_return Response::json(200, answer);
}

Task<Response> compare(Exchange& exchange) {
    if (!exchange.server().weights_snapshot)
        co_return sglang_failure({ErrorCode::kFailedPrecondition, "no snapshot was taken before"});
    const Result<messages::DigestsReply> now = co_await digests(exchange);
    if (!now) co_return sglang_failure(now.error());
    const std::vector<std::string> found = mismatches(*exchange.server().weights_snapshot, *now);
    if (found.empty()) co_return Response::json(200, {{"success", true}, {"message", "Success."}});
    const std::span shown = std::span(found).first(std::min(found.size(), kMismatchesShown));
    co_return sglang_failure(
        {ErrorCode::kDataLoss,
         fmt::format("{} tensors have changed: {}", found.size(), fmt::join(shown, "; "))}
    );
}

Task<Response> reset_tensors(Exchange& exchange) {
    const Result<messages::MemoryReply> dropped = co_await drop_weights(exchange);
    if (!dropped) co_return sglang_failure(dropped.error());
    co_return Response::json(
        200,
        {{"success", true},
         {"message", "Success. The weights are gone; a complete update must bring new ones."}}
    );
}

Task<Response> weights_checker(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::string action = "checksum";
    fields.read("action", action);
    if (fields.error()) co_return sglang_failure(*fields.error());
    if (action == "checksum") co_return co_await checksum(exchange);
    if (action == "snapshot") co_return co_await snapshot(exchange);
    if (action == "compare") co_return co_await compare(exchange);
    if (action == "reset_tensors") {
        // A link, an image or a prefetch can cause a GET; no trainer resets with GET.
        if (exchange.request().method == "POST") co_return co_await reset_tensors(exchange);
        Response refused = error_response(Dialect::kSglang, 405, "reset_tensors accepts only POST");
        refused.headers.push_back({"allow", "POST"});
        co_return refused;
    }
    co_return sglang_failure(make_error(
        ErrorCode::kInvalidArgument,
        "Unsupported action '{}'; accepted are checksum, snapshot, compare and reset_tensors",
        utf8_prefix(action, 64)
    ));
}

// ---- vLLM ----

// Returns names whose digests differ from `baseline`, or that only one side has.
std::vector<std::string> mismatches(
    const nlohmann::json& baseline, const messages::DigestsReply& now
) {
    std::vector<std::string> found;
    for (const messages::TensorInfo& tensor : now.tensors) {
        const auto known = baseline.find(tensor.name);
        if (known == baseline.end() || *known != tensor.digest) found.push_back(tensor.name);
    }
    for (const auto& then : baseline.items()) {
        const std::string& name = then.key();
        const bool is_there = std::ranges::any_of(
            now.tensors, [&](const messages::TensorInfo& tensor) { return tensor.name == name; }
        );
        if (!is_there) found.push_back(name);
    }
    return found;
}

Task<Response> vllm_checksum(Exchange& exchange) {
    const Result<messages::DigestsReply> now = co_await digests(exchange);
    if (!now) co_return checker_failure(now.error());
    Json checksums = Json::object();
    for (const messages::TensorInfo& tensor : now->tensors) checksums[tensor.name] = tensor.digest;
    co_return Response::json(200, {{"checksums", std::move(checksums)}});
}

Task<Response> vllm_compare(Exchange& exchange, const nlohmann::json& baseline) {
    const Result<messages::DigestsReply> now = co_await digests(exchange);
    if (!now) co_return checker_failure(now.error());
    const std::vector<std::string> found = mismatches(baseline, *now);
    co_return Response::json(200, {{"match", found.empty()}, {"mismatches", found}});
}

Task<Response> vllm_reset(Exchange& exchange) {
    const Result<messages::MemoryReply> dropped = co_await drop_weights(exchange);
    if (!dropped) co_return checker_failure(dropped.error());
    co_return Response::json(200, {{"status", "reset"}});
}

// Answers 409 if the tree is asleep or paused, whatever else is wrong with the call.
Task<Response> weight_checker(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return checker_failure(status.error());
    if (control::is_paused(*status) || control::is_released(*status)) {
        co_return checker_failure(
            {ErrorCode::kFailedPrecondition,
             "weights can be checked only while resident and not paused"}
        );
    }
    FieldReader fields(control_fields(exchange.request()));
    std::string action;
    fields.read("action", action);
    const nlohmann::json* baseline = fields.find("baseline");
    if (action != "checksum" && action != "reset" && action != "compare")
        fields.fail("action", "checksum, reset or compare");
    if (action == "compare" && (baseline == nullptr || !baseline->is_object()))
        fields.fail("baseline", "an object from names to checksums");
    if (fields.error()) co_return checker_failure(*fields.error());
    if (action == "checksum") co_return co_await vllm_checksum(exchange);
    if (action == "compare") co_return co_await vllm_compare(exchange, *baseline);
    co_return co_await vllm_reset(exchange);
}

}  // namespace

void add_weights_checker(Router& router) {
    router.add(
        Dialect::kSglang, Access::kAdmin, {{"GET, POST", "/weights_checker", weights_checker}}
    );
    router.add(Dialect::kVllm, Access::kAdmin, {{"POST", "/weight_checker", weight_checker}});
}

}  // namespace pitstop::http
