// Serves SGLang's routes for adapters. /load_lora_adapter replaces a loaded adapter of that name
// for later requests: SGLang refuses that, but prime-rl uses this route and expects it. prime-rl
// also expects 404 for a directory that does not exist yet, and then tries again.
#include "http_proc/control/adapters.h"

#include "http_proc/control/weight_session.h"
#include "http_proc/format/chat_call.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

// SGLang's path of an adapter whose tensors were sent
constexpr std::string_view kSent = "__tensor__";

// Answers {"success": true, "loaded_adapters": {name: path}}, including the new adapter.
Task<Response> loaded(Exchange& exchange, const messages::UpdateReply* reply) {
    const Result<std::vector<messages::AdapterStatus>> all = co_await control::adapters(exchange);
    if (!all) co_return sglang_failure(all.error());
    Json paths = Json::object();
    for (const messages::AdapterStatus& each : *all)
        paths[each.adapter.name] = each.path.empty() ? std::string(kSent) : each.path;
    Json answer{
        {"success", true}, {"error_message", nullptr}, {"loaded_adapters", std::move(paths)}};
    if (reply != nullptr) {
        answer["adapter_version"] = raw(reply->epoch);
        answer["adapter_digest"] = reply->digest;
        answer["adapter_config_digest"] = reply->config_digest;
    }
    co_return Response::json(200, answer);
}

// The other form in which a pickle may have the tensors, which its reader recognizes by itself.
constexpr std::string_view kBucket = "flattened_bucket";

enum class Sends { kDirectory, kPickles };

// Reads the options of a load; refuses options that are not served.
void read_options(FieldReader& fields, messages::UpdateSpec& spec, Sends sends) {
    fields.read("pinned", spec.adapter_pinned);
    fields.read("partial", spec.partial);
    spec.adapter_policy = control::read_adapter_policy(fields);
    const auto refuse = [&](std::string_view name, std::string_view why) {
        const nlohmann::json* const value = fields.find(name);
        if (value != nullptr && !value->empty()) fields.refuse(name, why);
    };
    refuse("added_tokens_config", "the vocabulary is the model's");
    refuse("expected_checksums", "the bus takes a digest (update.digest)");
    const bool is_pickle = sends == Sends::kPickles;
    const nlohmann::json* const format = fields.find("load_format");
    if (format == nullptr || *format == "auto" || (is_pickle && *format == kBucket)) return;
    fields.fail("load_format", is_pickle ? "null, 'auto' or 'flattened_bucket'" : "null or 'auto'");
}

// Reads the pickles of the tensors, one for each rank.
std::vector<std::string> read_pickles(FieldReader& fields) {
    std::vector<std::string> serialized;
    std::vector<std::string> old;
    fields.read("serialized_named_tensors", serialized);
    fields.read("serialized_tensors", old);  // in SGLang before 0.5.20, and in its forks
    if (!serialized.empty() && !old.empty()) {
        fields.refuse(
            "serialized_tensors",
            "serialized_named_tensors has the tensors already; send one of them"
        );
    }
    return serialized.empty() ? old : serialized;
}

Task<Response> load(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    messages::UpdateSpec spec;
    fields.read("lora_path", spec.source.path);
    read_options(fields, spec, Sends::kDirectory);
    if (spec.source.path.empty() && !fields.error()) fields.fail("lora_path", "a directory");
    Result<std::string> name = control::read_adapter_name(exchange, fields);
    if (!name) co_return sglang_failure(name.error());
    spec.adapter = *std::move(name);
    const Result<messages::UpdateReply> reply =
        co_await control::load_adapter(exchange, std::move(spec));
    if (!reply) {
        Response failure = sglang_failure(reply.error());
        if (reply.error().code == ErrorCode::kNotFound) failure.status = 404;
        co_return failure;
    }
    co_return co_await loaded(exchange, &*reply);
}

Task<Response> load_from_tensors(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    const std::vector<std::string> serialized = read_pickles(fields);
    bool replaces = true;
    fields.read("upsert", replaces);
    messages::UpdateSpec spec;
    read_options(fields, spec, Sends::kPickles);
    const nlohmann::json* const config = fields.find("config_dict");
    const bool is_config = config != nullptr ? config->is_object() : spec.partial;
    if (!fields.error() && !is_config)
        fields.fail("config_dict", "an object as adapter_config.json has it");
    if (!fields.error() && serialized.empty())
        fields.fail("serialized_named_tensors", "a base64 text, or one for each rank");
    Result<std::string> name = control::read_adapter_name(exchange, fields);
    if (!name) co_return sglang_failure(name.error());
    if (!replaces) {
        const Result<bool> is_there = co_await control::is_loaded(exchange, *name);
        if (!is_there) co_return sglang_failure(is_there.error());
        if (*is_there) {
            co_return sglang_failure(make_error(
                ErrorCode::kAlreadyExists,
                "adapter '{}' is loaded already, and upsert is false",
                *name
            ));
        }
    }
    // The first pattern that matches a module decides, so the members must keep their order.
    const Result<Json> ordered = parse_ordered(exchange.request().body);
    if (!ordered) co_return sglang_failure(ordered.error());
    if (config != nullptr) spec.adapter_config = ordered->at("config_dict").dump();
    spec.source.kind = messages::SourceKind::kTensors;
    spec.source.format = messages::TensorFormat::kPickle;
    for (const std::string& base64 : serialized) {
        Result<messages::RankPayload> payload = weights::payload_of(base64);
        if (!payload) co_return sglang_failure(payload.error());
        spec.source.payloads.push_back(*std::move(payload));
    }
    spec.adapter = *std::move(name);
    const Result<messages::UpdateReply> reply =
        co_await control::load_adapter(exchange, std::move(spec));
    if (!reply) co_return sglang_failure(reply.error());
    co_return co_await loaded(exchange, &*reply);
}

Task<Response> unload(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    Result<std::string> name = control::read_adapter_name(exchange, fields);
    if (!name) co_return sglang_failure(name.error());
    const Result<messages::AdapterReply> reply =
        co_await control::unload_adapter(exchange, *std::move(name));
    if (!reply) co_return sglang_failure(reply.error());
    co_return co_await loaded(exchange, nullptr);
}

}  // namespace

void add_sglang_adapters(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {{"POST", "/load_lora_adapter", load},
         {"POST", "/load_lora_adapter_from_tensors", load_from_tensors},
         {"POST", "/unload_lora_adapter", unload}}
    );
}

}  // namespace pitstop::http
