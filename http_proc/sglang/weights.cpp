// Serves SGLang's routes for weights: updates from a directory, and reads of a tensor.
#include "base/bf16.h"
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/update_seconds_json.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"
#include "http_proc/sglang/weight_transfer.h"
#include "messages/enum_named.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

Result<control::DiskUpdate> read_update(const nlohmann::json& body) {
    FieldReader fields(body);
    control::DiskUpdate update;
    std::string load_format;
    std::string kv_policy;
    std::string mode;
    fields.read("model_path", update.path);
    fields.read("weight_version", update.label);
    fields.read("flush_cache", update.clears_cache);
    fields.read("abort_all_requests", update.aborts_all);
    fields.read("load_format", load_format);
    fields.read("kv_policy", kv_policy);
    fields.read("update_mode", mode);
    fields.read("digest", update.digest);
    if (update.path.empty() && !fields.error()) fields.fail("model_path", "a checkpoint directory");
    if (!load_format.empty() && load_format != "auto" && load_format != "safetensors")
        fields.fail("load_format", "auto or safetensors");
    update.kv_policy = messages::enum_named<messages::KvPolicy>(kv_policy);
    if (!kv_policy.empty() && !update.kv_policy)
        fields.fail("kv_policy", "keep, recompute, drain or abort");
    if (const auto named = messages::enum_named<messages::UpdateMode>(mode))
        update.mode = *named;
    else if (!mode.empty())
        fields.fail("update_mode", "staged or direct");
    if (fields.error()) return *fields.error();
    return update;
}

Task<Response> update_weights_from_disk(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return sglang_failure(body.error());
    co_return co_await update_from_dir(exchange, *body);
}

}  // namespace

Task<Response> update_from_dir(Exchange& exchange, const nlohmann::json& body) {
    Result<control::DiskUpdate> update = read_update(body);
    if (!update) co_return sglang_failure(update.error());
    const std::string label = update->label;
    const Result<messages::UpdateReply> reply =
        co_await control::update_from_disk(exchange, *std::move(update));
    if (!reply) co_return sglang_failure(reply.error());
    std::string message = "Succeeded to update model weights.";
    if (!label.empty()) message += fmt::format(" Weight version updated to {}.", label);
    if (!reply->verdict.message.empty()) message += " " + reply->verdict.message;
    Json num_paused = 0;
    const std::int64_t num_replicas = exchange.tree().hello().replicas;
    if (num_replicas > 1) num_paused = std::vector<int>(static_cast<std::size_t>(num_replicas), 0);
    Json answer{
        {"success", true},
        {"message", message},
        {"num_paused_requests", num_paused},
        {"weight_epoch", raw(reply->epoch)},
        {"weight_digest", reply->digest},
        {"bytes", reply->bytes}};
    add_seconds(answer, reply->seconds);
    co_return Response::json(200, answer);
}

namespace {

// Returns element `index` of the tensor, which is row-major; nothing for an unsupported dtype.
std::optional<float> element(const messages::WeightsReply& reply, std::size_t index) {
    const std::uint8_t* bytes = reply.data.values.data();
    const auto read = [&]<class T>(T value) {
        std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
        return value;
    };
    if (reply.tensor.dtype == "BF16") return to_float(read(bf16{}));
    if (reply.tensor.dtype == "F16") return to_float(read(f16{}));
    if (reply.tensor.dtype == "F32") return read(0.f);
    return std::nullopt;
}

// Returns the first `num` rows as nested lists; of a vector, the first `num` elements.
nlohmann::json rows_of(const messages::WeightsReply& reply, std::int64_t num) {
    const std::vector<std::int64_t>& shape = reply.tensor.shape;
    nlohmann::json rows = nlohmann::json::array();
    const std::int64_t num_rows = std::min(num, shape.empty() ? 0 : shape.front());
    std::int64_t num_cols = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) num_cols *= shape[i];
    for (std::int64_t row = 0; row < num_rows; ++row) {
        nlohmann::json cols = nlohmann::json::array();
        for (std::int64_t col = 0; col < num_cols; ++col) {
            const auto value = element(reply, static_cast<std::size_t>(row * num_cols + col));
            cols.push_back(value ? nlohmann::json(*value) : nlohmann::json(nullptr));
        }
        rows.push_back(shape.size() == 1 ? cols.front() : std::move(cols));
    }
    return rows;
}

Task<Response> get_weights_by_name(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    messages::GetWeights call;
    std::int64_t truncate_size = 100;
    fields.read("name", call.name);
    fields.read("truncate_size", truncate_size);
    if (call.name.empty() && !fields.error()) fields.fail("name", "a tensor of the checkpoint");
    if (truncate_size < 0) fields.fail("truncate_size", "rows, 0 or more");
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::WeightsReply> reply =
        co_await exchange.tree().call(std::move(call), control::kTimeout);
    if (!reply) {
        co_return sglang_failure(
            {reply.error().code, "Get parameter by name failed: " + reply.error().message}
        );
    }
    co_return Response::json_text(200, rows_of(*reply, truncate_size).dump());
}

}  // namespace

void add_sglang_weights(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {{"POST", "/update_weights_from_disk", update_weights_from_disk},
         {"GET, POST", "/get_weights_by_name", get_weights_by_name}}
    );
}

}  // namespace pitstop::http
