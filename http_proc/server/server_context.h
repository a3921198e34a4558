// The data that all exchanges share: the tree, the keys, the limits.
//
// Thread: the server's loop.
#pragma once

#include "base/check.h"
#include "http_proc/format/keys.h"
#include "http_proc/format/site.h"
#include "http_proc/server/memory_budget.h"
#include "http_proc/server/model_formats.h"
#include "http_proc/server/of_tree.h"
#include "http_proc/server/ticker.h"
#include "http_proc/server/tree.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {

// All limits of the server. The times limit clients; the engine's time has no limit here.
struct ServerLimits {
    std::size_t connections_max = 8192;
    std::size_t header_bytes_max = 64 << 10;
    std::size_t body_bytes_max = std::size_t{32} << 20;
    // Bounds the bodies and prompts of all requests together, because connections times bodies
    // times samples would be too much.
    std::size_t held_bytes_max = std::size_t{512} << 20;
    std::chrono::milliseconds idle_timeout{120'000};   // between two requests of a connection
    std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to its body
    std::chrono::milliseconds body_timeout{20'000};    // plus 1 s per body_bytes_per_second_min
    std::size_t body_bytes_per_second_min = 16 << 10;  // bytes received per second of extra time
    std::chrono::milliseconds write_timeout{30'000};   // for a client that reads nothing
    std::chrono::milliseconds stop_grace{1'500};       // for open requests when the server stops
};

struct ServerOptions {
    std::string host = "127.0.0.1";
    int port = 30000;  // 0: any free one
    Keys keys{};
    bool is_incremental = false;  // /generate streams deltas unless a request asks otherwise
    // Whether answers in vLLM's shape have routes: on request only, or always in this form.
    enum class VllmRoutes : std::uint8_t { kOnRequest, kNumpy, kEnvelope };
    VllmRoutes vllm_routes = VllmRoutes::kOnRequest;
    bool returns_masks = false;              // vLLM's generate: for each request that truncates
    std::vector<std::string> model_names{};  // in addition to the tree's own name of the model
    std::string bundled_models{};  // directory of models that a path may name; empty: none
    SiteRules site{};  // pages that may call; with a cors_origin, answers have its header
    ModelFormats::Args formats{};
    ServerLimits limits{};
};

// How vLLM's trainers pack tensors for broadcasts.
struct VllmPacking {
    bool is_packed = false;
    std::int64_t bytes = std::int64_t{1} << 30;
};

struct NoTree : std::runtime_error {
    NoTree() : std::runtime_error("the tree is not ready") {}
};

class ServerContext {
  public:
    explicit ServerContext(ServerOptions options)
        : options_(std::move(options)),
          memory_(options_.limits.held_bytes_max),
          formats_(options_.formats) {}

    [[nodiscard]] const ServerOptions& options() const { return options_; }

    // Returns whether a tree is ready and its model's formats are known. Until then, routes that
    // need the tree are refused.
    [[nodiscard]] bool has_tree() const { return tree_ != nullptr && formats_.are_of(*tree_); }
    // Throws NoTree if there is no tree yet; then the request ends with an error.
    [[nodiscard]] Tree& tree() const {
        if (tree_ == nullptr) throw NoTree();
        return *tree_;
    }
    void set_tree(std::unique_ptr<Tree> tree) { tree_ = std::move(tree); }
    // Sets the formats from the chat template of a tree, by its Tree::number().
    void find_formats(std::uint64_t tree, std::string_view chat_template) {
        formats_.find(tree, chat_template);
    }
    // Learns the formats of a tree that has replaced the last one.
    void follow_tree() {
        if (tree_ != nullptr) formats_.follow(*tree_);
    }

    [[nodiscard]] const OutputFormats& formats() const { return formats_.get(); }

    // Returns whether this is a name of the served model. REQUIRES: has_tree().
    [[nodiscard]] bool serves(const std::string& model) const;

    [[nodiscard]] MemoryBudget& memory() { return memory_; }

    // Returns this process's start, in seconds since 1970: "created" of a model.
    [[nodiscard]] std::int64_t start_time() const { return start_time_; }
    [[nodiscard]] static std::int64_t unix_time() {
        return std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch()
        )
            .count();
    }

    // The digests of the last snapshot, to which /weights_checker compares the live ones.
    std::optional<messages::DigestsReply> weights_snapshot{};

    // AReaL's JSON of the tensors of its next broadcast; empty: no tensors were announced. Bounded
    // by the limit of a body.
    OfTree<std::string> next_broadcast{};
    OfTree<VllmPacking> vllm_packing{};  // from /init_weight_transfer_engine

    // The last known state of a tree's first weights.
    struct Readiness {
        // Whether the tree has ever had weights to serve: from the start, or with
        // --wait-for-initial-weights, since the first complete update.
        bool has_been = false;
        std::optional<messages::LostVersion> lost{};  // as last reported, before the tree was ready
    };
    OfTree<Readiness> readiness{};
    // The server was ordered to stop; health reports that.
    bool is_stopping = false;

    Ticker ticker{};
    // The body of /openapi.json, made by a thread for the first request. An error: the body could
    // not be made, and the next request tries again. The destructor waits for the thread.
    OfTree<std::shared_future<Result<std::string>>> openapi{};
    int num_status_pages = 0;  // open status pages

  private:
    ServerOptions options_;
    MemoryBudget memory_;
    ModelFormats formats_;
    std::unique_ptr<Tree> tree_{};
    std::int64_t start_time_ = unix_time();
};

inline bool ServerContext::serves(const std::string& model) const {
    const messages::HelloReply& hello = tree().hello();
    // An empty name matches any model. Clients that started the server know the model by its
    // directory.
    return model.empty() || model == hello.model || model == hello.model_path ||
           std::ranges::find(options_.model_names, model) != options_.model_names.end();
}

}  // namespace pitstop::http
