// Open calls of the data door whose texts the other thread has: tokenize, detokenize, render.
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

// The connection that made a call, and the connection's number for the call.
struct TextCall {
    std::string peer{};
    CallId call{};
};

class TextCallTable {
  public:
    static constexpr std::size_t kCallsMax = std::size_t{1} << 17;

    // Errors: kResourceExhausted. REQUIRES: no other call has the job.
    Result<> add(JobId job, TextCall call);

    // Removes and returns the call of this job; nothing if no call has the job.
    [[nodiscard]] std::optional<TextCall> remove(JobId job);
    // Removes a peer's calls, and returns their jobs.
    [[nodiscard]] std::vector<JobId> remove_all(const std::string& peer);
    // For each of these numbers, removes the peer's first call with that number.
    [[nodiscard]] std::vector<std::pair<JobId, TextCall>> remove_some(
        const std::string& peer, const std::vector<CallId>& calls
    );
    // Removes and returns all calls.
    [[nodiscard]] std::vector<TextCall> remove_all();

    // Returns the peers that have an open call, ascending.
    [[nodiscard]] std::vector<std::string> peers() const;

  private:
    std::map<JobId, TextCall> calls_{};
    std::map<std::string, std::multimap<CallId, JobId>> jobs_of_{};  // by peer and call
};

}  // namespace pitstop::tokenizer
