// The loop of tokenizer_proc around the doors. Each turn receives the tree's messages, then the
// admin door's, then the data door's. The turn runs the doors, and executes their decisions. The
// loop waits only in Poller::wait.
#include "base/fair_queue.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/supervision.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "tokenizer_proc/chat_template.h"
#include "tokenizer_proc/doors.h"
#include "tokenizer_proc/end_token.h"
#include "tokenizer_proc/sockets.h"
#include "tokenizer_proc/text_worker.h"
#include "tokenizer_proc/tokenizer_config.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <sys/random.h>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {
namespace {

constexpr std::chrono::seconds kIdleWait{10};
// The most text that one turn tokenizes before it sends output, about 5 ms of work. The other
// thread tokenizes longer texts.
constexpr std::size_t kIntakeBytesMax = 20 * TextWorker::kInlineBytesMax;
// a full queue does not report that it has room again
constexpr std::chrono::milliseconds kRetryAfter{5};
constexpr std::size_t kAdapterLinesMax = std::size_t{64} << 20;  // bytes of --lost-adapters
constexpr int kFarewellLingerMs = 1000;  // to send the last answers of a tree that shuts down

struct Flags {
    std::string run_dir{};
    std::string model{};
    std::string weights{};
    messages::LostVersion lost{};
    std::string restart_why{};
    std::string unfinished{};
    std::string adapters{};
    int bring_back_ms = 300'000;
    std::string keep_committed{};
    std::vector<std::string> served_model_names{};
    std::string log_level = "info";
    int dp = 1;
    std::string scheduling = "fair";
    TcpDoors tcp{};
};

std::uint64_t random_number() {
    std::uint64_t number = 0;
    // Once the kernel's pool is ready, a signal never interrupts a call for up to 256 bytes.
    CHECK(::getrandom(&number, sizeof number, 0) == sizeof number);
    return number;
}

// Receives one turn's messages from a door. `num_bytes` counts the bytes of both doors.
void take_from_door(messages::Door door, Sockets& sockets, std::size_t& num_bytes, DoorsInput& in) {
    for (int n = 0; n < bus::kMessagesPerTurnMax && num_bytes < kIntakeBytesMax; ++n) {
        std::optional<bus::Received> received = sockets.receive(door, in.now);
        if (!received) return;
        num_bytes += std::min(received->frames.body.size(), TextWorker::kInlineBytesMax);
        in.from_clients.emplace_back(door, *std::move(received));
    }
}

void take_from_tree(bus::Socket& inbox, DoorsInput& in) {
    for (int n = 0; n < bus::kMessagesPerTurnMax; ++n) {
        std::optional<bus::Received> received = inbox.receive();
        if (!received) return;
        in.from_tree.push_back(*std::move(received));
    }
}

// Returns why the tree shuts down, or nothing.
std::optional<std::string> farewell(Supervision& supervision) {
    for (const std::string& line : supervision.read_lines()) {
        if (line == "stop") return "the tree is shutting down";
        if (line.starts_with("died ")) {
            const std::size_t end = std::min(line.find(' ', 5), line.size());
            const std::string how = end < line.size() ? line.substr(end + 1) : "";
            return fmt::format(
                "{} died ({}); the tree is shutting down", line.substr(5, end - 5), how
            );
        }
    }
    if (supervision.is_over()) return "the launcher is gone; the tree is shutting down";
    return std::nullopt;
}

// Tells the launcher the version that a restart must load: the checkpoint, its digest, its
// label.
void tell_version(const ServedVersion& version, Supervision& supervision) {
    supervision.say_version(
        {.epoch = raw(version.epoch),
         .digest = version.digest,
         .label = version.label,
         .path = version.path}
    );
}

// Moves messages that cannot be sent, and later ones for the same receiver, to the next turn.
void send_to_replicas(std::vector<ToReplica> messages, Sockets& sockets, DoorsInput& next) {
    std::set<std::pair<ReplicaId, ReplicaSocket>> full;
    for (ToReplica& message : messages) {
        const std::pair receiver{message.replica, message.socket};
        bus::Socket& socket = message.socket == ReplicaSocket::kRequests
                                  ? sockets.requests(message.replica)
                                  : sockets.control(message.replica);
        if (!full.contains(receiver) && socket.send(message.frames) == bus::Sent::kSent) continue;
        full.insert(receiver);
        next.unsent_to_replicas.push_back(std::move(message));
    }
}

void send_to_clients(std::vector<ToClient> messages, Sockets& sockets, DoorsInput& next) {
    std::map<std::pair<messages::Door, std::string>, bus::Sent> unsent;
    for (ToClient& message : messages) {
        const std::pair receiver{message.door, message.peer};
        const auto before = unsent.find(receiver);
        const bus::Sent sent = before != unsent.end()
                                   ? before->second
                                   : sockets.door(message.door).send(message.frames, message.peer);
        if (sent == bus::Sent::kSent) continue;
        unsent.emplace(receiver, sent);
        next.unsent_to_clients.push_back({std::move(message), sent});
    }
}

void execute(
    DoorsOutput out,
    Sockets& sockets,
    TextWorker& worker,
    Supervision& supervision,
    DoorsInput& next
) {
    for (const ServedVersion& version : out.serves) tell_version(version, supervision);
    if (out.unfinished) supervision.say_unfinished(line_of(*out.unfinished));
    send_to_replicas(std::move(out.to_replicas), sockets, next);
    send_to_clients(std::move(out.to_clients), sockets, next);
    for (TextJob& job : out.jobs) {
        const JobId id = job.id;
        if (const Result<> taken = worker.push(std::move(job)); !taken)
            next.texts.push_back({.id = id, .error = taken.error()});
    }
    for (const JobId job : out.cancelled) worker.cancel(job);
}

void run(Doors& doors, Sockets& sockets, TextWorker& worker, Supervision& supervision) {
    bus::Poller poller;
    sockets.add_to(poller);
    poller.add_fd(worker.fd());
    if (supervision.fd() >= 0) poller.add_fd(supervision.fd());
    DoorsInput in;
    bool is_going_down = false;
    bool was_ready = false;
    bool said_end = false;
    for (;;) {
        in.now = Clock::now();
        in.entropy = {random_number(), random_number()};
        if (std::optional<std::string> why = farewell(supervision)) in.down_why = *std::move(why);
        if (!said_end && doors.is_end_due(in.now)) {
            said_end = true;
            supervision.say_end("asked for at the admin door");
            // Without a launcher, only this process can end the tree.
            if (supervision.fd() < 0) in.down_why = "the tree is shutting down";
        }
        is_going_down = is_going_down || !in.down_why.empty();
        take_from_tree(sockets.inbox(), in);
        std::size_t num_bytes = 0;
        take_from_door(messages::Door::kAdmin, sockets, num_bytes, in);
        for (TextDone& done : worker.take_done()) in.texts.push_back(std::move(done));
        take_from_door(messages::Door::kData, sockets, num_bytes, in);
        sockets.answer_keys();
        in.listeners = sockets.describe();
        in.now = Clock::now();  // the only clock of the turn
        DoorsOutput out = doors.turn(std::exchange(in, {}));
        TimePoint wake_at = out.wake_at;
        execute(std::move(out), sockets, worker, supervision, in);
        const TimePoint now = Clock::now();
        if (is_going_down && wake_at > now) return;
        if (doors.is_ready() && !was_ready) {
            was_ready = true;
            supervision.say_ready(doors.describe());
        }
        const bool is_unsent = !in.unsent_to_clients.empty() || !in.unsent_to_replicas.empty();
        if (is_unsent) wake_at = now + kRetryAfter;
        if (!in.texts.empty() || (!said_end && doors.is_end_due(now))) wake_at = now;
        poller.wait(std::min(now + kIdleWait, wake_at));
    }
}

std::string name_of_model(const Flags& flags) {
    if (!flags.served_model_names.empty()) return flags.served_model_names.front();
    std::filesystem::path path(flags.model);
    if (!path.has_filename()) path = path.parent_path();  // a final slash: "models/stories/"
    return path.filename().string();
}

void add_flags(Flags& values, FlagSet& flags) {
    flags.add("run-dir", &values.run_dir, "the tree's run directory, where its sockets are");
    flags.add("model", &values.model, "the model's directory, which has tokenizer.json");
    flags.add("weights", &values.weights, "the directory that the workers load; empty: --model");
    flags.add(
        "lost-why",
        &values.lost.why,
        "why the version before the restart is lost; empty: none is lost"
    );
    flags.add("lost-label", &values.lost.label, "label of the lost version");
    flags.add("lost-digest", &values.lost.digest, "digest of the lost version");
    flags.add("lost-path", &values.lost.path, "directory of the lost version; empty: it had none");
    flags.add(
        "restart-why", &values.restart_why, "why the tree restarted; empty: it did not restart"
    );
    flags.add(
        "unfinished",
        &values.unfinished,
        "unfinished work that the tree reported before the restart"
    );
    flags.add(
        "lost-adapters",
        &values.adapters,
        "file that lists the adapters loaded before the restart, to load them again"
    );
    flags.add(
        "bring-back-ms",
        &values.bring_back_ms,
        "milliseconds to load all adapters of --lost-adapters"
    );
    flags.add(
        "keep-committed",
        &values.keep_committed,
        "the directory where workers write committed weights"
    );
    flags.add(
        "served-model-name",
        &values.served_model_names,
        "the model's name; may be given again, for its other names; absent: the last part of "
        "--model"
    );
    flags.add("dp", &values.dp, "number of data-parallel replicas");
    flags.add("scheduling", &values.scheduling, kSchedulingHelp);
    flags.add(
        "tcp-door", &values.tcp.data, "HOST:PORT at which the data door also accepts other machines"
    );
    flags.add(
        "admin-tcp-door",
        &values.tcp.admin,
        "HOST:PORT at which the admin door also accepts other machines"
    );
    flags.add(
        "door-keys", &values.tcp.keys, "directory of the doors' keys, made by pitstop keygen"
    );
    flags.add("log-level", &values.log_level, "trace, debug, info, warning, error or off");
}

// Returns the value of --scheduling, or what is wrong with a flag. Also opens the log.
Result<Fairness> check_flags(const Flags& values) {
    if (values.dp < 1 || values.dp > bus::kReplicasMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--dp is {}; accepted is [1, {}]",
            values.dp,
            bus::kReplicasMax
        );
    }
    ASSIGN_OR_RETURN(const Fairness fairness, fairness_of(values.scheduling));
    RETURN_IF_ERROR(check(values.tcp));
    RETURN_IF_ERROR(init_logging("tokenizer_proc", values.log_level));
    return fairness;
}

Result<> serve(const Flags& values, Fairness fairness, Supervision& supervision) {
    RETURN_IF_ERROR(supervision.attach());
    ASSIGN_OR_RETURN(const bus::RunDir run_dir, bus::RunDir::open(values.run_dir));
    ASSIGN_OR_RETURN(
        const std::shared_ptr<const text::Tokenizer> tokenizer, text::Tokenizer::load(values.model)
    );
    for (const std::string& warning : tokenizer->warnings()) spdlog::info("{}", warning);
    const auto chat_template = ChatTemplate::load(values.model);
    if (const auto& problem = chat_template->problem()) spdlog::info("{}", problem->message);
    const Result<std::optional<TokenId>> end_token = read_end_token(values.model, *tokenizer);
    if (!end_token) spdlog::warn("the tokenizer has no end token: {}", end_token.error().message);

    Result<std::string> tokenizer_config = read_tokenizer_config(values.model);
    if (!tokenizer_config)
        spdlog::warn(
            "cannot read the tokenizer's configuration: {}", tokenizer_config.error().message
        );

    std::vector<messages::LostAdapter> adapters;
    if (!values.adapters.empty()) {
        ASSIGN_OR_RETURN(
            const std::string lines, MappedFile::read(values.adapters, kAdapterLinesMax)
        );
        ASSIGN_OR_RETURN(adapters, messages::lost_adapters_of(lines));
    }

    zmq::context_t context;
    ASSIGN_OR_RETURN(Sockets sockets, Sockets::open(context, run_dir, values.dp, values.tcp));
    TextWorker worker(tokenizer, fairness);
    for (const auto& [door, endpoint] : sockets.tcp_endpoints())
        supervision.say_door(name_of(door), endpoint);
    Doors doors(
        {.identity = TreeIdentity(random_number(), random_number()),
         .server = "pitstop " PITSTOP_VERSION,
         .model = name_of_model(values),
         .aliases = values.served_model_names,
         .model_path = values.model,
         .weights_path = values.weights.empty() ? values.model : values.weights,
         .lost = values.lost.why.empty() ? std::nullopt : std::optional(values.lost),
         .restart = {.why = values.restart_why, .before = read_unfinished(values.unfinished)},
         .adapters =
             {.adapters = std::move(adapters),
              .limit = std::chrono::milliseconds(values.bring_back_ms)},
         .keep_committed = values.keep_committed,
         .num_replicas = values.dp,
         .end_token = end_token ? *end_token : std::nullopt,
         .chat_template = chat_template,
         .tokenizer_config = tokenizer_config ? *std::move(tokenizer_config) : "{}"},
        tokenizer
    );
    run(doors, sockets, worker, supervision);
    sockets.set_linger_ms(kFarewellLingerMs);
    { const Sockets closed = std::move(sockets); }
    context.close();  // returns when the last answers are sent, or after the linger time
    // A long text in progress would delay the end of its thread, and nobody waits for that text.
    if (worker.is_busy()) std::_Exit(0);
    return Ok{};
}

int main_with(int argc, char** argv) {
    Flags values;
    Supervision supervision;
    FlagSet flags("tokenizer_proc", "The doors of the tree: clients, tokenization, control.");
    add_flags(values, flags);
    supervision.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    const Result<Fairness> fairness = check_flags(values);
    if (!fairness) return flags.fail(fairness.error());

    const Result<> served = serve(values, *fairness, supervision);
    return served ? 0 : supervision.fail(served.error());
}

}  // namespace
}  // namespace pitstop::tokenizer

int main(int argc, char** argv) {
    try {
        return pitstop::tokenizer::main_with(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "tokenizer_proc: %s\n", error.what());
        return 1;
    }
}
