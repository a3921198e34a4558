#include "detokenizer_proc/detokenizer.h"

#include "base/log.h"

#include <utility>

namespace pitstop::detokenizer {
namespace {

messages::OutputChunk error_chunk(RequestKey key, const Error& error) {
    messages::OutputChunk chunk;
    chunk.key = key;
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = error,
    };
    return chunk;
}

}  // namespace

void Detokenizer::start(messages::RequestStart start, messages::TextBatch& out) {
    Result<RequestText> request = RequestText::create(tokenizer_, std::move(start.text));
    if (!request) {
        out.chunks.push_back(error_chunk(start.key, request.error()));
        out.stopped.push_back(start.key);
        return;
    }
    if (!requests_.try_emplace(start.key, *std::move(request)).second) {
        spdlog::error("request {} started twice", raw(start.key));
    }
}

messages::TextBatch Detokenizer::turn(messages::TokenBatch batch) {
    messages::TextBatch out;
    for (messages::RequestStart& entry : batch.starts) start(std::move(entry), out);
    for (messages::OutputChunk& chunk : batch.chunks) {
        const RequestKey key = chunk.key;
        const bool is_last = chunk.finish.has_value();
        const auto place = requests_.find(key);
        if (place == requests_.end()) {
            spdlog::error("a chunk of request {}, which did not start", raw(key));
            out.chunks.push_back(
                error_chunk(key, {ErrorCode::kInternal, "the request's start was lost"})
            );
            if (!is_last) out.stopped.push_back(key);
            continue;
        }
        RequestText::Step taken = place->second.append(std::move(chunk));
        if (taken.chunk) out.chunks.push_back(*std::move(taken.chunk));
        if (taken.stopped) out.stopped.push_back(key);
        if (is_last) requests_.erase(place);
    }
    for (const RequestKey key : batch.drops) requests_.erase(key);
    return out;
}

}  // namespace pitstop::detokenizer
