// http_proc is a front end that speaks HTTP. It listens at once (/ping answers), connects to the
// tree like any client, and is ready when the tree is ready. Server::run is the loop.
#include "base/flags.h"
#include "base/log.h"
#include "base/supervision.h"
#include "base/time.h"
#include "http_proc/routes.h"
#include "http_proc/server/server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/resource.h>
#include <thread>

namespace pitstop::http {
namespace {

// Descriptors for other uses than connections: the bus, sockets remade after a loss, timers.
constexpr std::size_t kDescriptorsReserved = 40;
constexpr std::size_t kConnectionsMin = 8;  // with fewer connections, the server would be useless

// Longer than any start: only the launcher's --start-timeout ends a start that takes too long.
constexpr std::chrono::hours kConnectTimeout{24};

struct Flags {
    std::string run_dir{};
    std::string log_level = "info";
    std::string tool_call_parser{};
    std::string reasoning_parser{};
    std::string return_routed_experts{};
    bool is_insecure = false;
    bool shows_routes = false;
    std::int64_t header_bytes_max = 0;
    std::int64_t body_bytes_max = 0;
    std::int64_t held_bytes_max = 0;
    std::int64_t connections_max = 0;
    double idle_timeout_s = 0;
    double header_timeout_s = 0;
    double body_timeout_s = 0;
    double write_timeout_s = 0;
};

void add_format_flags(FlagSet& flags, Flags& values) {
    flags.add(
        "tool-call-parser",
        &values.tool_call_parser,
        "the format of the model's tool calls: " + tool_format_names() +
            "; auto: as the chat template shows it; empty: calls remain text"
    );
    flags.add(
        "reasoning-parser",
        &values.reasoning_parser,
        "the format of the model's thinking: " + thinking_format_names() +
            ", or two markers with a space between; auto: as the chat template shows it; empty: "
            "thinking remains text"
    );
}

void add_flags(FlagSet& flags, Flags& values, ServerOptions& options) {
    values.header_bytes_max = static_cast<std::int64_t>(options.limits.header_bytes_max);
    values.body_bytes_max = static_cast<std::int64_t>(options.limits.body_bytes_max);
    values.held_bytes_max = static_cast<std::int64_t>(options.limits.held_bytes_max);
    values.connections_max = static_cast<std::int64_t>(options.limits.connections_max);
    values.idle_timeout_s = seconds(options.limits.idle_timeout);
    values.header_timeout_s = seconds(options.limits.header_timeout);
    values.body_timeout_s = seconds(options.limits.body_timeout);
    values.write_timeout_s = seconds(options.limits.write_timeout);
    flags.add("run-dir", &values.run_dir, "the tree's run directory, where its sockets are");
    flags.add("host", &options.host, "IP address to listen at");
    flags.add("port", &options.port, "the port to listen at; 0: any free one");
    flags.add(
        "insecure",
        &values.is_insecure,
        "without an API key, accept a --host that other machines can reach"
    );
    flags.add("incremental-streaming-output", &options.is_incremental, "/generate streams deltas");
    flags.add(
        "return-routed-experts",
        &values.return_routed_experts,
        "completions, chats and /inference/v1/generate always return routed experts: npy (vLLM's "
        "form) or envelope (prime-rl's)"
    );
    flags.add(
        "return-sampling-mask",
        &options.returns_masks,
        "/inference/v1/generate always returns the sampling mask of requests that truncate"
    );
    flags.add("cors-origin", &options.site.cors_origin, "browser pages of this origin may call");
    flags.add(
        "allowed-host",
        &options.site.allowed_hosts,
        "a host name that requests without a key may use (.x: all below x; *: any), besides IP "
        "addresses and localhost; may be given again"
    );
    flags.add(
        "bundled-models", &options.bundled_models, "directory of models that model_path may name"
    );
    flags.add(
        "served-model-name", &options.model_names, "a further name of the model; may be given again"
    );
    add_format_flags(flags, values);
    flags.add("header-bytes-max", &values.header_bytes_max, "maximum bytes of a request's header");
    flags.add("body-bytes-max", &values.body_bytes_max, "maximum bytes of a request's body");
    flags.add(
        "held-bytes-max", &values.held_bytes_max, "maximum bytes of bodies and prompts in all"
    );
    flags.add("connections-max", &values.connections_max, "maximum number of connections at once");
    flags.add(
        "idle-timeout-s", &values.idle_timeout_s, "seconds between two requests of a connection"
    );
    flags.add(
        "header-timeout-s", &values.header_timeout_s, "seconds for a request's header to arrive"
    );
    flags.add(
        "body-timeout-s",
        &values.body_timeout_s,
        "seconds for a request's body to arrive, plus one per 16 KiB"
    );
    flags.add(
        "write-timeout-s",
        &values.write_timeout_s,
        "seconds that a client may read nothing before it is disconnected"
    );
    flags.add("routes", &values.shows_routes, "print the routes, then end");
    flags.add("log-level", &values.log_level, "trace, debug, info, warning, error or off");
}

constexpr std::string_view kAuto = "auto";

Result<> take_thinking_format(const Flags& values, ServerOptions& options) {
    options.formats.finds_thinking = values.reasoning_parser == kAuto;
    if (values.reasoning_parser.empty() || options.formats.finds_thinking) return Ok{};
    ASSIGN_OR_RETURN(
        options.formats.named.thinking, thinking_format_named(values.reasoning_parser)
    );
    return Ok{};
}

Result<> take_tool_format(const Flags& values, ServerOptions& options) {
    options.formats.finds_calls = values.tool_call_parser == kAuto;
    if (values.tool_call_parser.empty() || options.formats.finds_calls) return Ok{};
    options.formats.named.calls = tool_format_named(values.tool_call_parser);
    if (options.formats.named.calls) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "--tool-call-parser is '{}'; accepted are {} and auto",
        values.tool_call_parser,
        tool_format_names()
    );
}

// Harmony writes calls and thinking as messages of one list, so one parser must read both.
Result<> check_formats(const ServerOptions& options) {
    const OutputFormats& formats = options.formats.named;
    if (!formats.calls || !formats.thinking) return Ok{};
    if ((*formats.calls == ToolFormat::kHarmony) == formats.thinking->is_harmony) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "one of --tool-call-parser and --reasoning-parser names gpt-oss's format, the other does "
        "not; name gpt-oss's with both, or give one of them alone"
    );
}

Result<> take_vllm_routes(const Flags& values, ServerOptions& options) {
    using VllmRoutes = ServerOptions::VllmRoutes;
    if (values.return_routed_experts.empty()) return Ok{};
    if (values.return_routed_experts == "npy") {
        options.vllm_routes = VllmRoutes::kNumpy;
    } else if (values.return_routed_experts == "envelope") {
        options.vllm_routes = VllmRoutes::kEnvelope;
    } else {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--return-routed-experts is '{}'; accepted are npy and envelope",
            values.return_routed_experts
        );
    }
    return Ok{};
}

Result<> take_limits(const Flags& values, ServerOptions& options) {
    const auto milliseconds = [](double seconds) {
        return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
    };
    for (const double seconds :
         {values.idle_timeout_s,
          values.header_timeout_s,
          values.body_timeout_s,
          values.write_timeout_s}) {
        if (!(seconds > 0 && seconds < 1e6))
            return make_error(ErrorCode::kInvalidArgument, "timeouts must be more than 0 seconds");
    }
    for (const std::int64_t limit :
         {values.header_bytes_max,
          values.body_bytes_max,
          values.held_bytes_max,
          values.connections_max}) {
        if (limit < 1) return make_error(ErrorCode::kInvalidArgument, "limits must be 1 or more");
    }
    if (values.header_bytes_max > std::numeric_limits<std::int32_t>::max())
        return make_error(
            ErrorCode::kInvalidArgument, "--header-bytes-max must be at most 2^31 - 1"
        );
    ServerLimits& limits = options.limits;
    limits.header_bytes_max = static_cast<std::size_t>(values.header_bytes_max);
    limits.held_bytes_max = static_cast<std::size_t>(values.held_bytes_max);
    limits.body_bytes_max = static_cast<std::size_t>(values.body_bytes_max);
    limits.connections_max = static_cast<std::size_t>(values.connections_max);
    limits.idle_timeout = milliseconds(values.idle_timeout_s);
    limits.header_timeout = milliseconds(values.header_timeout_s);
    limits.body_timeout = milliseconds(values.body_timeout_s);
    limits.write_timeout = milliseconds(values.write_timeout_s);
    return Ok{};
}

// If the variable is not set, there is no such key. A variable that is empty is a mistake.
Result<> take_key(const char* variable, std::string_view flag, std::string& key) {
    const char* value = std::getenv(variable);
    if (value == nullptr) return Ok{};
    key = value;
    return check_key(key, flag, variable);
}

Result<> check_address(const Flags& values, const ServerOptions& options) {
    RETURN_IF_ERROR(check_host(options.host));
    if (options.port < 0 || options.port > 65535) {
        return make_error(
            ErrorCode::kInvalidArgument, "--port is {}; accepted is [0, 65535]", options.port
        );
    }
    if (!is_header_value(options.site.cors_origin))
        return make_error(
            ErrorCode::kInvalidArgument, "--cors-origin cannot be the value of a header"
        );
    RETURN_IF_ERROR(check_site_rules(options.site));
    if (is_loopback(options.host) || values.is_insecure || !options.keys.api.empty()) return Ok{};
    return make_error(
        ErrorCode::kPermissionDenied,
        "--host {} can be reached by others and there is no API key; set PITSTOP_API_KEY, or give "
        "--insecure",
        options.host
    );
}

// Limits connections so that descriptors remain for the connection to the tree: without them,
// libzmq ends the process.
Result<> leave_descriptors(ServerLimits& limits) {
    ::rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Ok{};
    if (limit.rlim_cur < kDescriptorsReserved + kConnectionsMin) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} descriptors may be open (ulimit -n); {} or more are needed",
            limit.rlim_cur,
            kDescriptorsReserved + kConnectionsMin
        );
    }
    const std::size_t connections_max = limit.rlim_cur - kDescriptorsReserved;
    if (limits.connections_max <= connections_max) return Ok{};
    spdlog::warn(
        "{} connections at once, not {}: {} descriptors may be open (ulimit -n)",
        connections_max,
        limits.connections_max,
        limit.rlim_cur
    );
    limits.connections_max = connections_max;
    return Ok{};
}

// Returns the model's chat template; empty if it has none.
Result<std::string> chat_template_of(Client& client) {
    std::optional<Result<messages::TokenizerReply>> reply;
    client.call(
        messages::DescribeTokenizer{},
        std::function<void(Result<messages::TokenizerReply>)>(
            [&reply](Result<messages::TokenizerReply> answer) { reply = std::move(answer); }
        )
    );
    while (!reply) {  // the call has a timeout of its own
        ::pollfd ready{.fd = client.ready_fd(), .events = POLLIN, .revents = 0};
        ::poll(&ready, 1, /*timeout=*/1'000);
        client.run_callbacks();
    }
    if (!*reply) return reply->error();
    return chat_template_in((*reply)->config);
}

struct Connected {
    std::unique_ptr<Client> client{};
    std::uint64_t tree = 0;  // the Tree::number() of chat_template
    std::string chat_template{};
};

// Waits until the tree is ready.
Result<Connected> connect(const std::string& run_dir, bool needs_template) {
    Connected connected;
    ASSIGN_OR_RETURN(
        connected.client,
        Client::connect(
            {.run_dir = run_dir,
             .name = "http",
             .connect_timeout = kConnectTimeout,
             .callbacks = CallbackThread::kCaller}
        )
    );
    connected.tree = connected.client->num_trees();
    if (needs_template) {
        ASSIGN_OR_RETURN(connected.chat_template, chat_template_of(*connected.client));
    }
    return connected;
}

// Runs the server until the launcher orders a stop. Once the server listens, never returns.
int serve(
    const Flags& values,
    const ServerOptions& options,
    const Router& router,
    Supervision& supervision
) {
    ServerContext context(options);
    Server server(context, router);
    if (auto listening = server.listen(); !listening) return supervision.fail(listening.error());
    const std::string url = server.url();

    server.watch(context.ticker.fd(), [&context] {
        context.ticker.beat();
        return true;
    });
    int exit_code = 0;
    const auto take_tree = [&](Result<Connected> connected) {
        if (!connected) {
            exit_code = supervision.fail(connected.error());
            return server.stop();
        }
        context.find_formats(connected->tree, connected->chat_template);
        context.set_tree(std::make_unique<Tree>(std::move(connected->client)));
        server.watch(context.tree().client().ready_fd(), [&context] {
            context.tree().client().run_callbacks();
            return true;
        });
        server.watch(context.tree().event_pace().fd(), [&context] {
            context.tree().event_pace().beat();
            return true;
        });
        supervision.say_ready(url);
        if (supervision.fd() < 0) spdlog::info("listening at {}", url);
    };
    // A thread waits until the tree is ready. The thread may outlive the loop: if the start is
    // abandoned, the process ends below without joining it.
    const bool needs_template = options.formats.finds_calls || options.formats.finds_thinking;
    std::thread([&server, &take_tree, needs_template, run_dir = values.run_dir] {
        auto connected = std::make_shared<Result<Connected>>(connect(run_dir, needs_template));
        server.post([connected, &take_tree] { take_tree(std::move(*connected)); });
    }).detach();
    if (supervision.fd() >= 0) {
        server.watch(supervision.fd(), [&] {
            for (const std::string& line : supervision.read_lines()) {
                if (line == "stop" || line.starts_with("died ")) server.stop();
            }
            if (supervision.is_over()) server.stop();
            return !supervision.is_over();
        });
    }
    server.run();
    std::fflush(nullptr);
    // No connection is left, and no destructor needs to run.
    std::_Exit(exit_code);
}

int main_with(int argc, char** argv) {
    Flags values;
    ServerOptions options;
    Supervision supervision;
    FlagSet flags(
        "http_proc",
        "HTTP for a tree: SGLang's, OpenAI's, vLLM's and Anthropic's routes. The environment has "
        "the keys: PITSTOP_API_KEY, PITSTOP_ADMIN_API_KEY."
    );
    add_flags(flags, values, options);
    supervision.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    const Router router = all_routes();
    if (values.shows_routes) {
        std::fputs(router.describe().c_str(), stdout);
        return 0;
    }
    if (auto taken = take_limits(values, options); !taken) return flags.fail(taken.error());
    if (auto taken = take_tool_format(values, options); !taken) return flags.fail(taken.error());
    if (auto taken = take_thinking_format(values, options); !taken)
        return flags.fail(taken.error());
    if (auto agree = check_formats(options); !agree) return flags.fail(agree.error());
    if (auto taken = take_vllm_routes(values, options); !taken) return flags.fail(taken.error());
    if (auto logging = init_logging("http_proc", values.log_level); !logging)
        return flags.fail(logging.error());
    if (auto attached = supervision.attach(); !attached) return supervision.fail(attached.error());
    if (auto taken = take_key("PITSTOP_API_KEY", "--api-key", options.keys.api); !taken)
        return supervision.fail(taken.error());
    if (auto taken = take_key("PITSTOP_ADMIN_API_KEY", "--admin-api-key", options.keys.admin);
        !taken)
        return supervision.fail(taken.error());
    if (auto checked = check_address(values, options); !checked)
        return supervision.fail(checked.error());
    if (auto left = leave_descriptors(options.limits); !left) return supervision.fail(left.error());

    return serve(values, options, router, supervision);
}

}  // namespace
}  // namespace pitstop::http

int main(int argc, char** argv) {
    try {
        return pitstop::http::main_with(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "http_proc: %s\n", error.what());
        return 1;
    }
}
