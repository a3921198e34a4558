// The doors' texts: calls that encode, decode or render, and the jobs of the other thread.
#include "messages/codec.h"
#include "tokenizer_proc/doors.h"

#include <algorithm>
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

// Answers each of these open calls: it was aborted.
void Doors::cancel_calls(const std::string& peer, const std::vector<CallId>& calls) {
    const Error error{ErrorCode::kAborted, "cancelled by the client"};
    std::vector<JobId> jobs;
    if (const auto of_peer = jobs_of_.find(peer); of_peer != jobs_of_.end()) {
        for (const CallId call : calls) {
            const auto job = of_peer->second.find(call);
            if (job != of_peer->second.end()) jobs.push_back(job->second);
        }
    }
    for (const JobId job : jobs) {
        if (!tokenize_calls_.contains(job)) continue;  // repeated
        out_.cancelled.push_back(job);
        end_call(job, &error);
    }
}

// Removes the call; an error, if any, is its answer.
void Doors::end_call(JobId job, const Error* error) {
    const auto place = tokenize_calls_.find(job);
    const TokenizeCall call = std::move(place->second);
    tokenize_calls_.erase(place);
    const auto of_peer = jobs_of_.find(call.peer);
    const auto [first, last] = of_peer->second.equal_range(call.call);
    of_peer->second.erase(std::find_if(first, last, [&](const auto& entry) {
        return entry.second == job;
    }));
    if (of_peer->second.empty()) jobs_of_.erase(of_peer);
    if (error == nullptr) return;
    messages::ErrorReply reply;
    reply.call = call.call;
    reply.error = *error;
    outbox_.reply(messages::Door::kData, call.peer, encode(reply));
}

// Returns the clients of the data door that wait for something.
std::vector<std::string> Doors::peers() const {
    std::vector<std::string> all = requests_.peers();
    for (const auto& [peer, jobs] : jobs_of_) all.push_back(peer);
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
        RETURN_IF_ERROR(check_decodable(*message.ids));
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

// Starts a call that a `tokenize_reply` answers. The loop never runs one itself: the cost of a
// chat's template or a token's text is unknown beforehand.
Result<> Doors::start_call(const std::string& peer, CallId call, TextJob job) {
    if (tokenize_calls_.size() >= kTextCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted, "{} tokenize calls are open", kTextCallsMax
        );
    }
    job.id = std::exchange(next_job_, next(next_job_));
    tokenize_calls_.emplace(job.id, TokenizeCall{peer, call});
    jobs_of_[peer].emplace(call, job.id);
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
    if (const auto place = tokenize_calls_.find(done.id); place != tokenize_calls_.end()) {
        if (done.error) return end_call(done.id, &*done.error);
        const TokenizeCall call = place->second;
        end_call(done.id, nullptr);
        messages::TokenizeReply reply;
        reply.call = call.call;
        reply.ids = std::move(done.ids);
        reply.text = std::move(done.text);
        reply.texts = std::move(done.texts);
        reply.bytes = std::move(done.bytes);
        reply.special = std::move(done.special);
        outbox_.reply(messages::Door::kData, call.peer, encode(reply));
        return;
    }
    OpenRequest* request = requests_.find(done.id);
    if (request == nullptr) return;  // ended meanwhile
    Result<> sent = done.error
                        ? Result<>(*done.error)
                        : add_bad_tokens(request->generate.sampling, std::move(done.bad_tokens));
    if (sent) sent = dispatch(*request, std::move(request->generate), std::move(done.ids));
    if (!sent) refuse_request(*request, sent.error());
}

}  // namespace pitstop::tokenizer
