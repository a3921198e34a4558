// The open requests: the client and the replica of each.
//
// Thread:  the loop thread only.
// Bounded: by the caller, through size(); kEndedMax ids of ended requests are remembered.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pitstop::tokenizer {

// Identifies a text that was handed to the other thread (text_worker.h).
enum class JobId : std::uint64_t {};

// Identifies a request even if clients use equal ids; never reused.
enum class OpenId : std::uint64_t {};

// A request's part of a conversation (conversations.h).
struct OpenTurn {
    messages::ConversationId conversation{};
    std::int64_t history_len = 0;   // prompt tokens that come from earlier turns
    std::vector<TokenId> prompt{};  // for the first chunk, if the client asks for it
    bool keeps_tokens = true;       // false: the turn opens its conversation
};

struct OpenRequest {
    OpenId id{};
    std::string peer{};  // the client's identity at the data door
    std::string rid{};   // the client's id, unique among its open requests
    // Set while the other thread tokenizes the text: the job, and the client's request.
    std::optional<JobId> job{};
    messages::Generate generate{};
    // Set once the request was sent to a replica.
    RequestKey key{};
    ReplicaId replica{};
    std::int64_t load = 0;  // tokens, an estimate of its work
    std::optional<OpenTurn> turn{};

    [[nodiscard]] bool is_sent() const { return key != RequestKey{}; }
};

class RequestTable {
  public:
    static constexpr std::size_t kEndedMax = 65536;

    // Adds a request. Returns null if the client has an open request with that id.
    OpenRequest* add(const std::string& peer, const std::string& rid);
    // set_job() records the job that the request waits for; set_key(), that the request was sent.
    void set_job(OpenRequest& request, JobId job);
    void set_key(OpenRequest& request, RequestKey key);

    // find() returns null if there is no such request. Pointers are valid until close().
    [[nodiscard]] OpenRequest* find(const std::string& peer, const std::string& rid);
    [[nodiscard]] OpenRequest* find(RequestKey key);
    [[nodiscard]] OpenRequest* find(JobId job);
    [[nodiscard]] std::vector<OpenRequest*> with_keys(std::span<const RequestKey> keys);
    // Return the requests ordered by peer, then id, so that nothing depends on a hash.
    [[nodiscard]] std::vector<OpenRequest*> of_peer(const std::string& peer);
    [[nodiscard]] std::vector<OpenRequest*> with_rid(const std::string& rid);
    [[nodiscard]] std::vector<OpenRequest*> all();

    void close(OpenRequest& request);
    // Returns whether a request with that id is among the last kEndedMax ended ones.
    [[nodiscard]] bool has_ended(const std::string& rid) const { return ended_.contains(rid); }

    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] std::size_t num_peers() const { return peers_.size(); }
    [[nodiscard]] std::vector<std::string> peers() const;

  private:
    std::map<std::string, std::map<std::string, OpenRequest>> peers_{};  // no inner map is empty
    std::unordered_map<RequestKey, OpenRequest*> by_key_{};
    std::map<JobId, OpenRequest*> by_job_{};
    std::size_t size_ = 0;
    OpenId next_id_{1};
    std::deque<std::string> ended_order_{};
    std::unordered_multiset<std::string> ended_{};
};

}  // namespace pitstop::tokenizer
