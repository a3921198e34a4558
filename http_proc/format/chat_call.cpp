#include "http_proc/format/chat_call.h"

#include "base/utf8.h"
#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/ordered_json.h"
#include "http_proc/format/sampling_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr auto kReplace = OrderedJson::error_handler_t::replace;

struct NotHere {
    std::string_view name{};
    std::string_view why{};
};
constexpr std::string_view kElsewhere = "/v1/chat/completions has it";
constexpr std::array kNotHere{
    NotHere{"logprobs", kElsewhere},
    NotHere{"prompt_logprobs", kElsewhere},
    NotHere{"logprob_token_ids", "/v1/chat/completions and /v1/completions have it"},
    NotHere{"input_ids", kElsewhere},
    NotHere{"documents", kElsewhere},
    NotHere{"continue_final_message", kElsewhere},
    NotHere{"return_tokens_as_token_ids", kElsewhere},
    NotHere{"return_prompt_text", kElsewhere},
    NotHere{"return_prompt_token_ids", "return_token_ids returns them, too"},
    NotHere{"session_params", "the turns of a session are requests of /generate"},
    NotHere{"return_sampling_mask", "/generate and /inference/v1/generate return it"},
    NotHere{"return_meta_info", "SGLang's /generate returns it"},
    NotHere{"echo", "the answer is only the assistant's turn"},
    NotHere{"add_special_tokens", "the chat template writes them"},
};

}  // namespace

void read_chat_call(FieldReader& fields, ChatCall& call) {
    refuse_unsupported(fields);
    read_thinking_fields(fields, call.thinking);
    if (const Json* tools = fields.find("tools"))
        call.schemas = std::make_shared<const ToolSchemas>(*tools);
    refuse_routed_experts(fields, "/generate, completions and chats answer with them");
    for (const NotHere& entry : kNotHere) {
        const Json* given = fields.find(entry.name);
        if (given != nullptr && *given != 0 && !asks_for_nothing(*given))
            fields.refuse(entry.name, entry.why);
    }
    refuse_formats(
        fields, "it belongs to /v1/chat/completions; here the format has a field of its own"
    );
    fields.read("lora_path", call.request.adapter);
    std::int64_t num_samples = 1;
    fields.read("n", num_samples);
    if (num_samples != 1) fields.refuse("n", kElsewhere);
    messages::SamplingParams& params = call.request.sampling;
    read_sampling(fields, params);
    if (params.top_k == 0) params.top_k.reset();  // vLLM's 0 means all, too
    fields.read("seed", params.seed);
    fields.read("min_tokens", params.min_new_tokens);
    fields.read("include_stop_str_in_output", params.no_stop_trim);
    read_placement(fields, call.request);
    fields.read("model", call.model);
    fields.read("request_id", call.id);
    fields.read("rid", call.id);
    fields.read("stream", call.is_streamed);
    call.request.stream = call.is_streamed;
    fields.read("return_token_ids", call.wants_token_ids);
    fields.read("chat_template", call.chat.chat_template);
    const Json* kwargs = fields.find("chat_template_kwargs");
    if (kwargs != nullptr && !kwargs->is_object()) fields.fail("chat_template_kwargs", "an object");
    if (kwargs != nullptr && kwargs->size() > kTemplateKwargsMax)
        fields.fail("chat_template_kwargs", kFewKwargs);
}

void force_call(FieldReader& fields, ForcedCall forced, ChatCall& call) {
    const Json* tools = fields.find("tools");
    if (tools == nullptr || !tools->is_array() || tools->empty())
        return fields.refuse("tool_choice", "it forces a call, but there are no tools");
    const auto is_meant = [&](const Json& tool) {
        return tool.is_object() && tool.value("name", Json()) == forced.function;
    };
    if (!forced.function.empty() && std::ranges::none_of(*tools, is_meant))
        return fields.refuse("tool_choice", "the tool that it names is not in tools");
    call.forced_call = std::move(forced);
}

Result<> finish_chat_call(const OrderedJson& body, OrderedJson variables, ChatCall& call) {
    const auto kwargs = body.find("chat_template_kwargs");
    if (kwargs != body.end() && kwargs->is_object()) {
        for (const auto& [key, value] : kwargs->items()) variables[key] = value;
    }
    call.chat.variables = variables.dump(-1, ' ', /*ensure_ascii=*/false, kReplace);
    if (auto problem = messages::invalid(call.request.sampling))
        return make_error(ErrorCode::kInvalidArgument, "{}", *problem);
    return Ok{};
}

Result<OrderedJson> parse_ordered(std::string_view body) {
    ASSIGN_OR_RETURN(OrderedJson ordered, parse_ordered_json(body));
    if (ordered.is_object()) return ordered;
    return make_error(ErrorCode::kMalformed, "the body is not a JSON object");
}

const std::string* text_member(const OrderedJson& object, std::string_view name) {
    if (!object.is_object()) return nullptr;
    const auto member = object.find(std::string(name));
    if (member == object.end() || !member->is_string()) return nullptr;
    return &member->get_ref<const std::string&>();
}

std::string shown(const OrderedJson& value) {
    constexpr std::size_t kShownMax = 80;
    std::string all = value.dump(-1, ' ', /*ensure_ascii=*/true, kReplace);
    if (all.size() <= kShownMax) return all;
    return std::string(utf8_prefix(all, kShownMax)) + "...";
}

}  // namespace pitstop::http
