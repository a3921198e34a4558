#include "tokenizer_proc/call_fanout.h"

namespace pitstop::tokenizer {

void CallFanout::handle_piece(messages::WorkerTensor piece) {
    const CallId id = piece.call;
    auto* read = calls_.find<TensorRead>(id);
    if (read == nullptr) return;  // the part is late, or a duplicate
    std::optional<Result<messages::WeightsReply>> whole = read->handle_piece(std::move(piece));
    if (!whole) return;
    const AdminCaller caller = calls_.close(id);
    if (*whole) {
        out_.answer(caller, **std::move(whole));
    } else {
        out_.answer_error(caller, whole->error());
    }
}

void CallFanout::wait_for_last_chunks(
    const AdminCaller& caller, TimePoint deadline, LastChunks chunks
) {
    if (chunks.ending.empty()) return out_.answer(caller, std::move(chunks.reply));
    const Result<CallId> opened = calls_.open(
        {.caller = caller,
         .what = messages::Abort::kType,
         .phase = phase_of<messages::Abort>(),
         .deadline = deadline + kReplicaGrace,
         .awaited = std::move(chunks)}
    );
    if (!opened) out_.answer_error(caller, opened.error());
}

void CallFanout::request_ended(OpenId request) {
    calls_.for_each<LastChunks>([&](CallId id, LastChunks& abort) {
        if (abort.ending.erase(request) == 0 || !abort.ending.empty()) return;
        messages::AbortReply reply = std::move(abort.reply);
        out_.answer(calls_.close(id), std::move(reply));
    });
}

std::vector<OpenCalls::Late> CallFanout::tick(TimePoint now) {
    std::vector<OpenCalls::Late> all = calls_.take_late(now);
    for (const OpenCalls::Late& late : all) out_.answer_error(late.caller, late.error);
    return all;
}

void CallFanout::fail_all(const Error& error) {
    for (const AdminCaller& caller : calls_.take_all()) out_.answer_error(caller, error);
}

}  // namespace pitstop::tokenizer
