#include "http_proc/sglang/generate_request.h"

#include "http_proc/format/batch.h"
#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/routed_experts.h"
#include "http_proc/format/sampling_fields.h"
#include "http_proc/format/thinking_fields.h"
#include "http_proc/sglang/sampling_params.h"
#include "http_proc/sglang/session_params.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

std::optional<std::vector<TokenId>> ids_of(const Json& value) {
    std::vector<TokenId> ids;
    ids.reserve(value.size());
    for (const Json& entry : value) {
        const auto id = token_of(entry);
        if (!id) return std::nullopt;
        ids.push_back(*id);
    }
    return ids;
}

// Reads the prompts: one text, one list of tokens, or a list of either.
Result<> read_prompts(FieldReader& fields, SglangGenerate& call) {
    const auto wrong = [](std::string_view what) {
        return make_error(ErrorCode::kInvalidArgument, "{}", what);
    };
    if (const Json* text = fields.find("text")) {  // text has precedence over input_ids
        call.is_batch = text->is_array();
        if (text->is_string()) {
            call.prompts.emplace_back().text = text->get<std::string>();
            return Ok{};
        }
        if (!text->is_array()) return wrong("text is neither a string nor a list of strings");
        for (const Json& entry : *text) {
            if (!entry.is_string())
                return wrong("text is a list with an entry that is not a string");
            call.prompts.emplace_back().text = entry.get<std::string>();
        }
    } else if (const Json* ids = fields.find("input_ids")) {
        if (!ids->is_array()) return wrong("input_ids is not a list");
        if (ids->empty()) return wrong("input_ids cannot be empty.");
        call.is_batch = ids->front().is_array();
        const auto add = [&](const Json& list) -> bool {
            auto prompt = list.is_array() ? ids_of(list) : std::nullopt;
            if (!prompt) return false;
            call.prompts.emplace_back().input_ids = std::move(prompt);
            return true;
        };
        if (!call.is_batch && !add(*ids))
            return wrong("input_ids has an entry that is not a token id");
        if (call.is_batch) {
            for (const Json& list : *ids) {
                if (!add(list))
                    return wrong("input_ids is a list with an entry that is not a list of token ids"
                    );
            }
        }
    } else {
        return wrong("one of text and input_ids must be given");
    }
    if (call.prompts.empty()) return wrong("the batch is empty");
    if (call.prompts.size() > kBatchMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the batch has {} prompts; at most {} are accepted",
            call.prompts.size(),
            kBatchMax
        );
    }
    return Ok{};
}

// Samples are named after their prompt. Such a name must not be the rid of another prompt.
Result<> check_rids_of_samples(const SglangGenerate& call) {
    if (call.samples == 1) return Ok{};
    std::set<std::string> names;
    for (const messages::Generate& prompt : call.prompts) names.insert(prompt.rid);
    for (const messages::Generate& prompt : call.prompts) {
        for (std::int64_t i = 0; i < call.samples && !prompt.rid.empty(); ++i) {
            const std::string sample = fmt::format("{}_{}", prompt.rid, i);
            if (!names.contains(sample)) continue;
            return make_error(
                ErrorCode::kInvalidArgument,
                "Duplicate request IDs detected within the request: {} is a prompt's, and sample "
                "{} of {}'s",
                Json(sample).dump(),
                i,
                Json(prompt.rid).dump()
            );
        }
    }
    return Ok{};
}

Result<> read_rids(FieldReader& fields, SglangGenerate& call) {
    const Json* rid = fields.find("rid");
    if (rid == nullptr) return Ok{};
    if (rid->is_string()) {
        const auto& text = rid->get_ref<const std::string&>();
        if (!call.is_batch) {
            call.prompts.front().rid = text;
        } else if (!text.empty()) {
            call.batch_rid = text;
            for (std::size_t i = 0; i < call.prompts.size(); ++i)
                call.prompts[i].rid = fmt::format("{}_{}", text, i);
        }
        return Ok{};
    }
    if (!rid->is_array() || !call.is_batch) {
        return make_error(
            ErrorCode::kInvalidArgument, "rid must be a string, or for a batch a list of strings"
        );
    }
    if (rid->size() != call.prompts.size()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "rid has {} entries but the batch has {} prompts",
            rid->size(),
            call.prompts.size()
        );
    }
    std::set<std::string> seen;
    std::vector<std::string> repeated;
    for (std::size_t i = 0; i < rid->size(); ++i) {
        const Json& entry = (*rid)[i];
        if (entry.is_null()) continue;
        if (!entry.is_string())
            return make_error(ErrorCode::kInvalidArgument, "rid has an entry that is not a string");
        call.prompts[i].rid = entry.get<std::string>();
        if (!call.prompts[i].rid.empty() && !seen.insert(call.prompts[i].rid).second)
            repeated.push_back(call.prompts[i].rid);
    }
    if (repeated.empty()) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "Duplicate request IDs detected within the request: {}",
        Json(repeated).dump()
    );
}

// Reads an option: one value for all prompts, or a list with one value per prompt.
template <class Assign>
Result<> read_each(
    FieldReader& fields,
    std::string_view name,
    SglangGenerate& call,
    std::string_view accepted,
    Assign assign
) {
    const Json* given = fields.find(name);
    if (given == nullptr) return Ok{};
    const bool is_list = given->is_array() && !given->empty() && call.is_batch;
    if (is_list && given->size() != call.prompts.size()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} has {} entries but the batch has {} prompts",
            name,
            given->size(),
            call.prompts.size()
        );
    }
    if (is_list && call.samples > 1) {
        return make_error(
            ErrorCode::kInvalidArgument, "{} cannot be a list where n is more than 1", name
        );
    }
    for (std::size_t i = 0; i < call.prompts.size(); ++i) {
        const Json& value = is_list ? (*given)[i] : *given;
        if (!value.is_null() && !assign(call.prompts[i], value)) {
            fields.fail(name, accepted);
            return *fields.error();
        }
    }
    return Ok{};
}

Result<> read_logprob_options(FieldReader& fields, SglangGenerate& call) {
    RETURN_IF_ERROR(read_each(
        fields,
        "return_logprob",
        call,
        "true or false, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto flag = bool_of(value);
            if (flag) prompt.logprobs.enabled = *flag;
            return flag.has_value();
        }
    ));
    RETURN_IF_ERROR(read_each(
        fields,
        "logprob_start_len",
        call,
        "an integer, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto number = integer_of(value);
            if (number && *number != -1) prompt.logprobs.prompt_start = *number;  // -1: none
            return number.has_value();
        }
    ));
    RETURN_IF_ERROR(read_each(
        fields,
        "top_logprobs_num",
        call,
        "an integer, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto number = integer_of(value);
            if (number) prompt.logprobs.top = *number;
            return number.has_value();
        }
    ));
    // A list of ids is for all prompts; a list of lists has one list per prompt.
    const Json* ids = fields.find("token_ids_logprob");
    const bool is_flat =
        ids != nullptr && ids->is_array() && std::ranges::all_of(*ids, [](const Json& entry) {
            return !entry.is_array() && !entry.is_null();
        });
    const auto assign = [](messages::Generate& prompt, const Json& value) {
        auto list = value.is_array() ? ids_of(value) : std::nullopt;
        if (!list) return false;
        prompt.logprobs.ids = *std::move(list);
        return true;
    };
    constexpr std::string_view kIds = "a list of token ids, or a list of such lists";
    if (is_flat) {
        for (messages::Generate& prompt : call.prompts) {
            if (assign(prompt, *ids)) continue;
            fields.fail("token_ids_logprob", kIds);
            return *fields.error();
        }
    } else {
        RETURN_IF_ERROR(read_each(fields, "token_ids_logprob", call, kIds, assign));
    }
    messages::LogprobsMode mode = messages::LogprobsMode::kScaled;
    read_logprobs_mode(fields, mode);
    call.names_logprobs_mode = fields.has("logprobs_mode");
    for (messages::Generate& prompt : call.prompts) {
        messages::LogprobOptions& options = prompt.logprobs;
        options.mode = mode;
        if (options.enabled) continue;
        call.unused_ids.emplace_back("token_ids_logprob", std::move(options.ids));
        options = {};  // drops details of logprobs that were not requested
    }
    return Ok{};
}

Result<> read_sampling_mask(FieldReader& fields, SglangGenerate& call) {
    return read_each(
        fields,
        "return_sampling_mask",
        call,
        "true or false, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto flag = bool_of(value);
            if (flag) prompt.logprobs.support = *flag;
            return flag.has_value();
        }
    );
}

Result<> read_routed_experts(FieldReader& fields, SglangGenerate& call) {
    RETURN_IF_ERROR(read_each(
        fields,
        "return_routed_experts",
        call,
        "true or false, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto flag = bool_of(value);
            if (flag && *flag) prompt.routed_experts_start = 0;
            return flag.has_value();
        }
    ));
    return read_each(
        fields,
        "routed_experts_start_len",
        call,
        "an integer of at least 0, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            const auto number = integer_of(value);
            if (number && prompt.routed_experts_start) prompt.routed_experts_start = *number;
            return number && *number >= 0;
        }
    );
}

Result<> read_adapters(FieldReader& fields, SglangGenerate& call) {
    return read_each(
        fields,
        "lora_path",
        call,
        "an adapter's name or null, or a list of them",
        [](messages::Generate& prompt, const Json& value) {
            if (value.is_string()) prompt.adapter = value.get<std::string>();
            return value.is_string();
        }
    );
}

// Reads a list of ids for one prompt; for a batch, a list of such lists.
Result<> read_drafts(FieldReader& fields, SglangGenerate& call) {
    if (!call.is_batch) {
        read_draft_ids(fields, call.prompts.front());
        return Ok{};
    }
    return read_each(
        fields,
        "draft_ids",
        call,
        "for a batch a list with a list of token ids for each prompt, or null",
        [](messages::Generate& prompt, const Json& value) {
            if (value.is_array()) prompt.draft_ids = ids_of(value);
            return prompt.draft_ids.has_value();
        }
    );
}

// Reads the routes of the prompts: of one prompt, or for a batch, a list with one entry per prompt,
// null for a prompt without routes.
Result<> read_given_routes(FieldReader& fields, SglangGenerate& call) {
    const Json* given = fields.find("routed_experts");
    if (given == nullptr) return Ok{};
    if (call.is_batch != given->is_array() ||
        (call.is_batch && given->size() != call.prompts.size())) {
        fields.fail(
            "routed_experts", "one prompt's routes, or for a batch a list with one entry per prompt"
        );
        return *fields.error();
    }
    for (std::size_t i = 0; i < call.prompts.size(); ++i) {
        const Json& value = call.is_batch ? (*given)[i] : *given;
        std::optional<GivenRoutes>& routes = call.given_routes.emplace_back();
        if (value.is_null()) continue;
        Result<GivenRoutes> read = given_routes(value);
        if (!read) return error_of_prompt(i, call.prompts.size(), read.error());
        routes = *std::move(read);
    }
    return Ok{};
}

Result<> read_turns(FieldReader& fields, SglangGenerate& call) {
    Result<> read = Ok{};
    RETURN_IF_ERROR(read_each(
        fields,
        "session_params",
        call,
        "an object, or a list of them",
        [&](messages::Generate& prompt, const Json& value) {
            if (value.is_object() && read) read = read_session_params(value, prompt);
            return value.is_object();
        }
    ));
    if (!read) return read;
    std::string& session_id = call.session_id;
    fields.read("session_id", session_id);
    for (const messages::Generate& prompt : call.prompts) {
        if (!prompt.turn) continue;
        if (!session_id.empty())
            fields.refuse("session_id", "session_params names another session; set one of them");
        if (prompt.turn->replace && call.samples > 1)
            fields.refuse("session_params", "replace is for one sample, and n is more than 1");
    }
    if (fields.error()) return *fields.error();
    return Ok{};
}

Result<> read_sampling_params(FieldReader& fields, SglangGenerate& call) {
    const Json* given = fields.find("sampling_params");
    const Json none = Json::object();
    const bool is_list = given != nullptr && given->is_array();
    if (is_list && (!call.is_batch || given->size() != call.prompts.size())) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "sampling_params has {} entries; {} {}",
            given->size(),
            call.is_batch ? "the number of prompts is" : "one prompt needs an object, not",
            call.is_batch ? std::to_string(call.prompts.size()) : "a list"
        );
    }
    for (std::size_t i = 0; i < call.prompts.size(); ++i) {
        if (i > 0 && !is_list) {
            call.prompts[i].sampling = call.prompts.front().sampling;
            continue;
        }
        const Json& object = is_list ? (*given)[i] : given != nullptr ? *given : none;
        Result<SglangSampling> read = parse_sglang_sampling(object.is_null() ? none : object);
        if (!read)
            return is_list ? error_of_prompt(i, call.prompts.size(), read.error()) : read.error();
        SglangSampling sampling = *std::move(read);
        call.prompts[i].sampling = std::move(sampling.params);
        if (i > 0 && sampling.n != call.samples)
            return make_error(
                ErrorCode::kInvalidArgument, "n must be the same for the whole batch"
            );
        call.unused_ids.emplace_back(
            "sampling_params.stop_token_ids", std::move(sampling.unused_stop_ids)
        );
        call.samples = sampling.n;
        call.stream_interval = sampling.stream_interval;
    }
    if (call.prompts.size() * static_cast<std::size_t>(call.samples) > kRequestsMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} prompts with n {} make more than {} requests",
            call.prompts.size(),
            call.samples,
            kRequestsMax
        );
    }
    return Ok{};
}

}  // namespace

Result<SglangGenerate> parse_sglang_generate(std::string_view body) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(body));
    FieldReader fields(json);
    refuse_unsupported(fields);
    refuse_thinking_fields(fields);
    refuse_sampling(fields);
    refuse_formats(
        fields, "sampling_params has the grammar: json_schema, regex, ebnf or structural_tag"
    );
    if (fields.error()) return *fields.error();

    SglangGenerate call;
    RETURN_IF_ERROR(read_prompts(fields, call));
    RETURN_IF_ERROR(read_rids(fields, call));
    RETURN_IF_ERROR(read_sampling_params(fields, call));
    RETURN_IF_ERROR(check_rids_of_samples(call));
    RETURN_IF_ERROR(read_logprob_options(fields, call));
    RETURN_IF_ERROR(read_sampling_mask(fields, call));
    RETURN_IF_ERROR(read_routed_experts(fields, call));
    RETURN_IF_ERROR(read_adapters(fields, call));
    RETURN_IF_ERROR(read_drafts(fields, call));
    RETURN_IF_ERROR(read_given_routes(fields, call));
    RETURN_IF_ERROR(read_turns(fields, call));
    fields.read("stream", call.is_streamed);
    read_streamed_routes(fields, call.is_streamed, call.streams_routes);
    if (call.streams_routes && std::ranges::none_of(call.prompts, [](const auto& prompt) {
            return prompt.routed_experts_start.has_value();
        }))
        fields.refuse("stream_routed_experts", "return_routed_experts is not true");
    fields.read("incremental_streaming_output", call.is_incremental);
    fields.read("return_text_in_logprobs", call.wants_text_in_logprobs);
    fields.read("return_prompt_token_ids", call.wants_prompt_token_ids);
    messages::Generate common;
    fields.read("priority", common.priority);
    fields.read("data_parallel_rank", common.replica);
    fields.read("routed_dp_rank", common.replica);
    read_kv_tolerance(fields, common);
    read_draft_key(fields, common);
    if (fields.error()) return *fields.error();
    for (std::size_t i = 0; i < call.prompts.size(); ++i) {
        messages::Generate& prompt = call.prompts[i];
        prompt.stream = call.is_streamed;
        prompt.priority = common.priority;
        prompt.replica = common.replica;
        prompt.kv_tolerance = common.kv_tolerance;
        prompt.kv_max_lag = common.kv_max_lag;
        prompt.draft_key = common.draft_key;
        if (auto problem = messages::invalid(prompt)) {
            Error error{ErrorCode::kInvalidArgument, *std::move(problem)};
            return error_of_prompt(i, call.prompts.size(), std::move(error));
        }
    }
    return call;
}

}  // namespace pitstop::http
