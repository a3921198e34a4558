#include "http_proc/server/errors.h"

#include "base/utf8.h"
#include "http_proc/format/json_writer.h"
#include "messages/context_limit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>

namespace pitstop::http {
namespace {

std::string_view openai_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 429:
            return "rate_limit_error";
        default:
            return status < 500 ? "invalid_request_error" : "server_error";
    }
}

// Source: Anthropic's API reference, "Errors".
std::string_view anthropic_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
            return "overloaded_error";
        case 504:
            return "timeout_error";
        default:
            return status < 500 ? "invalid_request_error" : "api_error";
    }
}

void write_openai_code(JsonWriter& json, int status, std::string_view code) {
    json.key("code");
    if (!code.empty()) {
        json.string(code);
    } else if (status == 401) {
        json.string("invalid_api_key");
    } else if (status == 404) {
        json.string("not_found");
    } else {
        json.null();
    }
}

// The message may quote bytes that are not UTF-8; such bytes become U+FFFD.
void write_message(JsonWriter& json, std::string_view message) {
    json.key("message");
    if (is_utf8(message)) {
        json.string(message);
    } else {
        constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
        json.raw(nlohmann::json(message).dump(-1, ' ', false, kReplace));
    }
}

void write_sglang(JsonWriter& json, int status, std::string_view message) {
    // For a missing or wrong key, the message is only the status's phrase.
    if ((status == 401 || status == 403) && message == reason_phrase(status)) {
        json.key("error").string(message);
        return;
    }
    json.key("error").begin_object();
    write_message(json, message);
    json.end_object();
    json.key("object").string("error");
    write_message(json, message);
    json.key("type").string(status < 500 ? reason_phrase(status) : std::to_string(status));
    json.key("param").null().key("code").integer(status);
}

void write_anthropic(JsonWriter& json, int status, std::string_view message) {
    json.key("type").string("error").key("error").begin_object();
    json.key("type").string(anthropic_type(status));
    write_message(json, message);
    json.end_object();
}

// Uses a writer instead of a tree of values: destructors of nlohmann's trees allocate, which ends
// the process if no memory is left.
// `openai_code`: OpenAI's code for the error, if it has one.
void write_body(
    JsonWriter& json,
    Dialect dialect,
    int status,
    std::string_view message,
    std::string_view openai_code
) {
    if (dialect == Dialect::kSglang || dialect == Dialect::kPitstop)
        return write_sglang(json, status, message);
    if (dialect == Dialect::kAnthropic) return write_anthropic(json, status, message);
    json.key("error").begin_object();
    write_message(json, message);
    if (dialect == Dialect::kOpenAi) {
        json.key("type").string(openai_type(status)).key("param").null();
        write_openai_code(json, status, openai_code);
    } else {
        json.key("type").string(reason_phrase(status)).key("param").null();
        json.key("code").integer(status);
    }
    json.end_object();
}

std::string body_of(
    Dialect dialect, int status, std::string_view message, std::string_view openai_code
) {
    JsonWriter json;
    json.begin_object();
    write_body(json, dialect, status, message, openai_code);
    json.end_object();
    return json.take();
}

// The error texts that clients search for; agents shorten a conversation when they find one.
// Source: SGLang's tokenizer manager; the words that OpenAI and vLLM both used for years;
// Anthropic's API.
std::string words_of(const messages::ContextLimit& limit, Dialect dialect) {
    const std::int64_t prompt_len = limit.prompt_len;
    const std::int64_t output_len = limit.output_len;
    const std::int64_t context_len = limit.context_len;
    const bool is_prompt = prompt_len >= context_len;  // then no length of output fits
    const std::uint64_t num_asked =
        static_cast<std::uint64_t>(prompt_len) + static_cast<std::uint64_t>(output_len);
    switch (dialect) {
        case Dialect::kAnthropic:
            if (is_prompt) {
                return fmt::format(
                    "prompt is too long: {} tokens > {} maximum", prompt_len, context_len
                );
            }
            return fmt::format(
                "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input "
                "length or `max_tokens` and try again",
                prompt_len,
                output_len,
                context_len
            );
        case Dialect::kPitstop:
        case Dialect::kSglang:
            if (is_prompt) {
                return fmt::format(
                    "The input ({} tokens) is longer than the model's context length ({} tokens).",
                    prompt_len,
                    context_len
                );
            }
            return fmt::format(
                "Requested token count exceeds the model's maximum context length of {} tokens. "
                "You requested a total of {} tokens: {} tokens from the input messages and {} "
                "tokens for the completion. Please reduce the number of tokens in the input "
                "messages or the completion to fit within the limit.",
                context_len,
                num_asked,
                prompt_len,
                output_len
            );
        case Dialect::kOpenAi:
        case Dialect::kVllm:
            break;
    }
    return fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
        "the prompt, {} in the completion). Please reduce the length of the prompt or the "
        "completion.",
        context_len,
        num_asked,
        prompt_len,
        output_len
    );
}

}  // namespace

int status_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidArgument:
        case ErrorCode::kMalformed:
        case ErrorCode::kTooLarge:
            return 400;
        case ErrorCode::kPermissionDenied:
            return 403;
        case ErrorCode::kNotFound:
            return 404;
        case ErrorCode::kAlreadyExists:
        case ErrorCode::kFailedPrecondition:
            return 409;
        case ErrorCode::kUnsupported:
            return 501;
        case ErrorCode::kResourceExhausted:
        case ErrorCode::kUnavailable:
        case ErrorCode::kAborted:
            return 503;
        case ErrorCode::kDeadlineExceeded:
            return 504;
        case ErrorCode::kUnknownMessage:
        case ErrorCode::kDataLoss:
        case ErrorCode::kNotFinite:
        case ErrorCode::kInternal:
            return 500;
    }
    return 500;
}

std::string error_json(Dialect dialect, int status, std::string_view message) {
    return body_of(dialect, status, message, /*openai_code=*/{});
}

std::string error_json(Dialect dialect, int status, const Error& error) {
    const auto limit = messages::context_limit_of(error);
    if (!limit) return error_json(dialect, status, error.message);
    return body_of(dialect, status, words_of(*limit, dialect), "context_length_exceeded");
}

Response error_response(Dialect dialect, int status, std::string_view message) {
    Response response = Response::json_text(status, error_json(dialect, status, message));
    if (status == 401) response.headers.push_back({"www-authenticate", "Bearer"});
    return response;
}

Response error_response(Dialect dialect, int status, const Error& error) {
    return Response::json_text(status, error_json(dialect, status, error));
}

Response error_response(Dialect dialect, const Error& error) {
    return error_response(dialect, status_of(error.code), error);
}

}  // namespace pitstop::http
