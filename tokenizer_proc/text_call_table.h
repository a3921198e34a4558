// The open calls of the data door whose texts the other thread has: tokenize, detokenize, render.
//
// Thread:  the loop thread only.
// Bounded: kCallsMax calls.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer_proc/text_worker.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// A call, by the connection that made it and that connection's number for it.
struct TextCall {
    std::string peer{};
    CallId call{};
};

class TextCallTable {
  public:
    static constexpr std::size_t kCallsMax = std::size_t{1} << 17;

    // Errors: kResourceExhausted. REQUIRES: no other call has the job.
    Result<> add(JobId job, TextCall call);

    // Removes the call of a job and returns it; nothing if it is none's.
    [[nodiscard]] std::optional<TextCall> remove(JobId job);
    // Removes a peer's calls, and returns their jobs.
    [[nodiscard]] std::vector<JobId> remove_all(const std::string& peer);
    // Removes, of each of these numbers, a peer's first call.
    [[nodiscard]] std::vector<std::pair<JobId, TextCall>> remove_some(
        const std::string& peer, const std::vector<CallId>& calls
    );
    // Removes all calls and returns them.
    [[nodiscard]] std::vector<TextCall> remove_all();

    // Returns the peers that have an open call, ascending.
    [[nodiscard]] std::vector<std::string> peers() const;

  private:
    std::map<JobId, TextCall> calls_{};
    std::map<std::string, std::multimap<CallId, JobId>> jobs_of_{};  // by peer and call
};

}  // namespace pitstop::tokenizer
