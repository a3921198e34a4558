// The doors' texts: calls that encode, decode or render, and the jobs of the other thread.
#include "messages/codec.h"
#include "tokenizer_proc/doors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::tokenizer {

// Returns a client's name: its connection, then the names that it gives itself. A connection's
// identity is bytes.
std::vector<std::string> Doors::client_path(
    const std::string& peer, std::vector<std::string> names
) {
    std::string connection;
    for (const char c : peer) connection += fmt::format("{:02x}", static_cast<unsigned char>(c));
    names.insert(names.begin(), std::move(connection));
    return names;
}

// Answers these open calls: they were aborted.
void Doors::cancel_calls(const std::string& peer, const std::vector<CallId>& calls) {
    const Error error{ErrorCode::kAborted, "cancelled by the client"};
    for (const auto& [job, call] : text_calls_.remove_some(peer, calls)) {
        out_.cancelled.push_back(job);
        answer(call, error);
    }
}

void Doors::answer(const TextCall& call, const Error& error) {
    messages::ErrorReply reply;
    reply.call = call.call;
    reply.error = error;
    outbox_.reply(messages::Door::kData, call.peer, encode(reply));
}

// Returns the clients of the data door that wait for something.
std::vector<std::string> Doors::peers() const {
    std::vector<std::string> all = requests_.peers();
    std::ranges::move(text_calls_.peers(), std::back_inserter(all));
    std::ranges::move(conversations_.peers(), std::back_inserter(all));
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

Result<> Doors::handle(const std::string& peer, messages::Tokenize message) {
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
        RETURN_IF_ERROR(checks_->check_decodable(*message.ids, tokenizer_->vocab_size()));
        job.ids = *std::move(message.ids);
    }
    return start_call(peer, message.call, std::move(job));
}

Result<> Doors::handle(const std::string& peer, messages::RenderChat message) {
    if (config_.chat_template == nullptr) {
        return Error{ErrorCode::kUnsupported, "no chat template was loaded"};
    }
    TextJob job{
        .client = client_path(peer, std::move(message.client)),
        .chat =
            ChatJob{
                config_.chat_template,
                {.variables = std::move(message.variables),
                 .continue_final_message = message.continue_final_message,
                 .chat_template = std::move(message.chat_template)}},
        .add_special = message.add_special_tokens ? text::AddSpecial::kYes : text::AddSpecial::kNo,
    };
    return start_call(peer, message.call, std::move(job));
}

Result<> Doors::handle(const std::string& peer, const messages::DescribeTokenizer& message) {
    messages::TokenizerReply reply;
    reply.call = message.call;
    reply.config = config_.tokenizer_config;
    outbox_.reply(messages::Door::kData, peer, encode(reply));
    return Ok{};
}

// Starts a call that a `tokenize_reply` answers. The loop never runs one itself: the cost of a chat
// template, or of the tokens' texts, is unknown beforehand.
Result<> Doors::start_call(const std::string& peer, CallId call, TextJob job) {
    RETURN_IF_ERROR(text_calls_.add(next_job_, {peer, call}));
    job.id = std::exchange(next_job_, next(next_job_));
    out_.jobs.push_back(std::move(job));
    return Ok{};
}

// A short prompt is tokenized at once, unless the tokenizer may make it long.
void Doors::start_job(TextJob job) {
    if (tokenizer_->work_max(bytes_of(job)) <= TextWorker::kInlineBytesMax)
        return job_done(run_job(*tokenizer_, std::move(job)));
    out_.jobs.push_back(std::move(job));
}

void Doors::job_done(TextDone done) {
    if (const std::optional<TextCall> call = text_calls_.remove(done.id)) {
        if (done.error) return answer(*call, *done.error);
        messages::TokenizeReply reply;
        reply.call = call->call;
        reply.ids = std::move(done.ids);
        reply.text = std::move(done.text);
        reply.texts = std::move(done.texts);
        reply.bytes = std::move(done.bytes);
        reply.special = std::move(done.special);
        outbox_.reply(messages::Door::kData, call->peer, encode(reply));
        return;
    }
    OpenRequest* request = requests_.find(done.id);
    if (request == nullptr) return;  // ended meanwhile
    Result<> sent =
        done.error
            ? Result<>(*done.error)
            : checks_->add_bad_tokens(request->generate.sampling, std::move(done.bad_tokens));
    if (sent) sent = dispatch(*request, std::move(request->generate), std::move(done.ids));
    if (!sent) refuse_request(*request, sent.error());
}

}  // namespace pitstop::tokenizer
