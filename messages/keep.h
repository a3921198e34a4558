// --keep-committed writes the serving version to a directory after its commit, so that a restart
// loads exactly that version, whatever source the version came from.
//
// All replicas have the same weights, so the door orders replica 0 to write, in steps. begin
// creates the file. write fills it with every rank's shard. seal reads the file back and gives it
// its final name. If a step fails, or a newer version is committed, a drop ends the writing. Each
// worker gets these orders between two plans on its socket, as it gets commits, so that all ranks
// write the same version.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::messages {

enum class KeepStep : std::uint8_t { kBegin, kWrite, kSeal, kDrop };
template <>
struct EnumNames<KeepStep> {
    static constexpr std::array<std::string_view, 4> kNames{"begin", "write", "seal", "drop"};
};

struct WorkerKeep {
    static constexpr std::string_view kType = "worker_keep";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc -> tp_worker: a step of writing the live weights to "
        "the directory of --keep-committed, in the background. Answered by `worker_kept`: each "
        "step by rank 0, and `write` by the others, too.";
    CallId call{};
    KeepStep step = KeepStep::kBegin;
    Epoch epoch{};
    std::string label{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call; the same for all steps of a version");
        f("step", step, "begin, write, seal or drop");
        f("epoch", epoch, "the version that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
    }
};

struct WorkerKept {
    static constexpr std::string_view kType = "worker_kept";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc -> tokenizer_proc: a step of `worker_keep` is done, or "
        "failed.";
    CallId call{};
    Rank rank{};
    KeepStep step = KeepStep::kBegin;
    Verdict verdict{};
    std::string path{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("rank", rank, "the sender");
        f("step", step, "the step answered");
        verdict.fields_in(f);
        f("path",
          path,
          "seal: the version's directory; begin: the same, if the version was "
          "already there");
    }
};

}  // namespace pitstop::messages
