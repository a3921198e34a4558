// Holds what all exchanges share: the tree, the keys, the limits.
//
// Thread: the server's loop.
#pragma once

#include "base/check.h"
#include "http_proc/format/keys.h"
#include "http_proc/format/site.h"
#include "http_proc/format/tool_calls.h"
#include "http_proc/server/memory_budget.h"
#include "http_proc/server/ticker.h"
#include "http_proc/server/tree.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {

// Holds every bound of the server. Times are of the client's part: what the engine takes has no
// limit here.
struct ServerLimits {
    std::size_t connections_max = 8192;
    std::size_t header_bytes_max = 64 << 10;
    std::size_t body_bytes_max = std::size_t{32} << 20;
    // This bounds the bodies and prompts of all requests together: connections times bodies times
    // samples would be too much.
    std::size_t held_bytes_max = std::size_t{512} << 20;
    std::chrono::milliseconds idle_timeout{120'000};   // between two requests of a connection
    std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to its body
    std::chrono::milliseconds body_timeout{20'000};    // and a second more for each
    std::size_t body_bytes_per_second_min = 16 << 10;  // this many bytes that came
    std::chrono::milliseconds write_timeout{30'000};   // a client that takes nothing for so long
    std::chrono::milliseconds stop_grace{1'500};       // what requests in progress get, at a stop
};

struct ServerOptions {
    std::string host = "127.0.0.1";
    int port = 30000;  // 0: any free one
    Keys keys{};
    bool is_incremental = false;  // /generate streams deltas where a request does not say
    std::vector<std::string> model_names{};  // besides the one that the tree says
    std::string bundled_models{};            // where those lie that go by name; empty: none do
    SiteRules site{};  // says whose pages may call; with a cors_origin answers have its header
    std::optional<ToolFormat> tool_format{};  // null: calls of tools come back as text
    ServerLimits limits{};
};

// Says how vLLM's trainers pack broadcasts.
struct VllmPacking {
    bool is_packed = false;
    std::int64_t bytes = std::int64_t{1} << 30;
};

class ServerContext {
  public:
    explicit ServerContext(ServerOptions options)
        : options_(std::move(options)), memory_(options_.limits.held_bytes_max) {}

    [[nodiscard]] const ServerOptions& options() const { return options_; }

    // The tree may come later than the first request: routes that need it are refused until then.
    [[nodiscard]] bool has_tree() const { return tree_ != nullptr; }
    [[nodiscard]] Tree& tree() const {
        CHECK(tree_ != nullptr);
        return *tree_;
    }
    void set_tree(std::unique_ptr<Tree> tree) { tree_ = std::move(tree); }

    // Tells whether a request that names this model is for what is served. REQUIRES: has_tree().
    [[nodiscard]] bool serves(const std::string& model) const;

    [[nodiscard]] MemoryBudget& memory() { return memory_; }

    // Returns seconds since 1970, of this process's start: "created" of a model.
    [[nodiscard]] std::int64_t start_time() const { return start_time_; }
    [[nodiscard]] static std::int64_t unix_time() {
        return std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch()
        )
            .count();
    }

    // /weights_checker compares with these, the digests at its last snapshot.
    std::optional<messages::DigestsReply> weights_snapshot{};

    // Holds the tensors of AReaL's next broadcast, as its JSON; empty: none were announced. A
    // body's size bounds it.
    std::string next_broadcast{};
    VllmPacking vllm_packing{};  // as /init_weight_transfer_engine said

    // The tree was seen with weights to serve: at once, or (--wait-for-initial-weights) after the
    // first complete update. It stays so.
    bool has_been_ready = false;
    std::optional<messages::LostVersion> lost{};  // as the last look said, before it was ready
    // This is set from the order to stop on, and health says so.
    bool is_stopping = false;

    Ticker ticker{};
    int num_status_pages = 0;  // pages that listen

  private:
    ServerOptions options_;
    MemoryBudget memory_;
    std::unique_ptr<Tree> tree_{};
    std::int64_t start_time_ = unix_time();
};

inline bool ServerContext::serves(const std::string& model) const {
    const messages::HelloReply& hello = tree().hello();
    // An empty name fits any; the directory is what clients know that started the server.
    return model.empty() || model == hello.model || model == hello.model_path ||
           std::ranges::find(options_.model_names, model) != options_.model_names.end();
}

}  // namespace pitstop::http
