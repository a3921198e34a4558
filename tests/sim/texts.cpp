// The world's texts: the other thread that encodes prompts, and the clients that wait for it.
#include "tests/sim/world.h"
#include "tests/source_dir.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

using std::chrono::milliseconds;

// Longer than the texts that the doors encode themselves.
constexpr std::size_t kTextBytes = 2 * tokenizer::TextWorker::kInlineBytesMax;
// A client that does not read may get its answer late.
constexpr auto kTextCallTime = std::chrono::seconds(100);

// The tokens of a text that begins with this number.
std::vector<TokenId> ids_of(const std::string& text) {
    const std::uint64_t number = std::stoull(text);
    std::vector<TokenId> ids;
    for (std::uint64_t i = 0; i < 1 + hash_of(number) % 30; ++i)
        ids.push_back(static_cast<TokenId>(2 + hash_of(number, i) % (kVocab - 2)));
    return ids;
}

}  // namespace

std::shared_ptr<const text::Tokenizer> World::tokenizer() {
    static const auto loaded = text::Tokenizer::load(source_dir() + "/launch/models/stories");
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return *loaded;
}

std::string World::some_text() {
    std::string text = fmt::format("{} ", next_text_++);
    text.resize(kTextBytes, 'x');
    return text;
}

void World::ask_tokenize() {
    const std::string peer = some_client().front();
    messages::Tokenize message;
    message.call = CallId{next_call_++};
    message.text = some_text();
    calls_[raw(message.call)] = {
        .name = "tokenize",
        .peer = peer,
        .deadline = now_ + kTextCallTime,
        .ids = ids_of(*message.text)};
    submitting_ = {.peer = peer};
    submitting_call_ = message.call;
    say(peer, messages::Door::kData, message);
    submitting_ = {};
    submitting_call_ = {};
}

// Cancels a job of the other thread, for which a client waits.
void World::cancel_text() {
    if (jobs_.empty()) return;
    auto place = jobs_.begin();
    std::advance(place, random_.between(0, std::ssize(jobs_) - 1));
    const Job job = place->second;
    messages::Cancel cancel;
    if (job.placed.rid.empty()) {
        cancel.calls = {job.call};
    } else {
        cancel.rids = {job.placed.rid};
    }
    say(job.placed.peer, messages::Door::kData, cancel);
}

// The other thread's time for each job varies. A job without a waiting client gives no result,
// unless it is already done.
void World::take_jobs(std::vector<tokenizer::TextJob> jobs) {
    for (tokenizer::TextJob& job : jobs) {
        jobs_[job.id] = {
            .placed = submitting_, .call = submitting_call_, .text = *std::move(job.text)};
        after(some(50, random_.once_in(10) ? 20'000 : 1500), [this, id = job.id] {
            finish_job(id);
        });
    }
}

void World::cancel_jobs(const std::vector<tokenizer::JobId>& cancelled) {
    for (const tokenizer::JobId id : cancelled) {
        if (!random_.once_in(4)) jobs_.erase(id);
    }
}

void World::finish_job(tokenizer::JobId id) {
    const auto place = jobs_.find(id);
    if (place == jobs_.end()) return;
    const Job job = std::move(place->second);
    jobs_.erase(place);
    tokenizer::TextDone done{.id = id, .ids = ids_of(job.text)};
    submitting_ = job.placed;
    submitting_.prompt = done.ids;
    if (is_active_ && random_.once_in(20)) {
        done.ids.clear();
        done.error = Error{ErrorCode::kResourceExhausted, "the simulator has too much text"};
    }
    ++report_.num_texts;
    tokenizer::DoorsInput in;
    in.texts.push_back(std::move(done));
    turn_of_doors(std::move(in));
    submitting_ = {};
}

// A text's tokens are its own, whichever others wait at the same time.
void World::check_prompt(const messages::TokenizedRequest& request) {
    if (submitting_.prompt && request.prompt.values != *submitting_.prompt)
        oracle_.fail(fmt::format("request {} runs on another's text", raw(request.key)));
}

void World::check_tokens(const Call& call, const messages::Frames& frames) {
    const Result<messages::TokenizeReply> reply =
        decode<messages::TokenizeReply>(frames, messages::UnknownFields::kRefuse);
    if (!reply || reply->ids != *call.ids)
        oracle_.fail(fmt::format("client {} got the tokens of another text", call.peer));
}

}  // namespace pitstop::sim
