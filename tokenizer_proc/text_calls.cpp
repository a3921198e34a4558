#include "tokenizer_proc/text_calls.h"

#include "messages/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace pitstop::tokenizer {

std::vector<std::string> client_path(const std::string& peer, std::vector<std::string> names) {
    std::string connection;
    for (const char c : peer) connection += fmt::format("{:02x}", static_cast<unsigned char>(c));
    names.insert(names.begin(), std::move(connection));
    return names;
}

Result<> TextCalls::handle(
    const std::string& peer, messages::Tokenize message, const RequestChecks& checks
) {
    TextJob job{
        .client = client_path(peer, std::move(message.client)),
        .text = std::move(message.text),
        .add_special = message.add_special_tokens ? text::AddSpecial::kYes : text::AddSpecial::kNo,
        .skip_special =
            message.skip_special_tokens ? text::SkipSpecial::kYes : text::SkipSpecial::kNo,
        .wants_text = true,
        .wants_texts = message.each_token,
    };
    if (message.ids) {
        RETURN_IF_ERROR(checks.check_decodable(*message.ids, texts_.tokenizer->vocab_size()));
        job.ids = *std::move(message.ids);
    }
    return start_call(peer, message.call, std::move(job));
}

Result<> TextCalls::handle(const std::string& peer, messages::RenderChat message) {
    if (texts_.chat_template == nullptr) {
        return Error{ErrorCode::kUnsupported, "no chat template was loaded"};
    }
    TextJob job{
        .client = client_path(peer, std::move(message.client)),
        .chat =
            ChatJob{
                texts_.chat_template,
                {.variables = std::move(message.variables),
                 .continue_final_message = message.continue_final_message,
                 .chat_template = std::move(message.chat_template)}},
        .add_special = message.add_special_tokens ? text::AddSpecial::kYes : text::AddSpecial::kNo,
    };
    return start_call(peer, message.call, std::move(job));
}

Result<> TextCalls::handle(const std::string& peer, const messages::DescribeTokenizer& message) {
    messages::TokenizerReply reply;
    reply.call = message.call;
    reply.config = texts_.tokenizer_config;
    outbox_.reply(messages::Door::kData, peer, encode(reply));
    return Ok{};
}

// Starts a call that is answered with `tokenize_reply`.
Result<> TextCalls::start_call(const std::string& peer, CallId call, TextJob job) {
    RETURN_IF_ERROR(calls_.add(next_job_, {peer, call}));
    job.id = next_job();
    jobs_.push_back(std::move(job));
    return Ok{};
}

void TextCalls::cancel(const std::string& peer, const std::vector<CallId>& calls) {
    const Error error{ErrorCode::kAborted, "cancelled by the client"};
    for (const auto& [job, call] : calls_.remove_some(peer, calls)) {
        cancelled_.push_back(job);
        answer(call, error);
    }
}

void TextCalls::lose(const std::string& peer) {
    std::ranges::copy(calls_.remove_all(peer), std::back_inserter(cancelled_));
}

void TextCalls::fail_all(const Error& error) {
    for (const TextCall& call : calls_.remove_all()) answer(call, error);
}

void TextCalls::answer(const TextCall& call, const Error& error) {
    messages::ErrorReply reply;
    reply.call = call.call;
    reply.error = error;
    outbox_.reply(messages::Door::kData, call.peer, encode(reply));
}

std::optional<TextDone> TextCalls::start(TextJob job) {
    if (texts_.tokenizer->work_max(bytes_of(job)) <= TextWorker::kInlineBytesMax)
        return run_job(*texts_.tokenizer, std::move(job));
    jobs_.push_back(std::move(job));
    return std::nullopt;
}

bool TextCalls::finish(TextDone& done) {
    const std::optional<TextCall> call = calls_.remove(done.id);
    if (!call) return false;
    if (done.error) {
        answer(*call, *done.error);
        return true;
    }
    messages::TokenizeReply reply;
    reply.call = call->call;
    reply.ids = std::move(done.ids);
    reply.text = std::move(done.text);
    reply.texts = std::move(done.texts);
    reply.bytes = std::move(done.bytes);
    reply.special = std::move(done.special);
    outbox_.reply(messages::Door::kData, call->peer, encode(reply));
    return true;
}

}  // namespace pitstop::tokenizer
