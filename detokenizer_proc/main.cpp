// The loop of detokenizer_proc: token batches in, text batches out.
#include "base/descriptors.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/supervision.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "detokenizer_proc/detokenizer.h"
#include "messages/codec.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

namespace pitstop::detokenizer {
namespace {

constexpr std::chrono::seconds kIdleWait{10};
constexpr std::chrono::milliseconds kHeldWait{1};  // while the tokenizer's queue is full

constexpr int kOwnDescriptors = 32;  // all descriptors except the connections of its inbox

struct Ports {
    bus::Socket inbox;
    bus::Socket tokenizer;
    // a text batch that the tokenizer has no room for; until it is sent, no token batch is taken
    std::optional<messages::Frames> held{};
};

void send_held(Ports& ports) {
    if (ports.held && ports.tokenizer.send(*ports.held) == bus::Sent::kSent) ports.held.reset();
}

void handle(const bus::Received& received, Detokenizer& detokenizer, Ports& ports) {
    if (received.refused) {
        spdlog::warn("refused a message: {}", received.refused->message);
        return;
    }
    if (received.frames.type != messages::TokenBatch::kType) {
        spdlog::warn("refused a message: '{}' is not for this process", received.frames.type);
        return;
    }
    Result<messages::TokenBatch> batch =
        decode<messages::TokenBatch>(received.frames, messages::UnknownFields::kIgnore);
    if (!batch) {
        spdlog::warn("refused a message: {}", batch.error().message);
        return;
    }
    const messages::TextBatch text = detokenizer.turn(*std::move(batch));
    if (!text.chunks.empty() || !text.stopped.empty()) ports.held = encode(text);
    send_held(ports);
}

void run(Detokenizer& detokenizer, Ports& ports, Supervision& supervision) {
    bus::Poller poller;
    poller.add(ports.inbox);
    bus::Poller quiet;  // waits without the inbox, whose messages would wake it at once
    if (supervision.fd() >= 0) {
        poller.add_fd(supervision.fd());
        quiet.add_fd(supervision.fd());
    }
    for (;;) {
        for (const std::string& line : supervision.read_lines()) {
            if (line == "stop") return;
        }
        if (supervision.is_over()) return;
        // A slow tokenizer slows this process down, and thereby the schedulers.
        send_held(ports);
        for (int n = 0; n < bus::kMessagesPerTurnMax && !ports.held; ++n) {
            const std::optional<bus::Received> received = ports.inbox.receive();
            if (!received) break;
            handle(*received, detokenizer, ports);
        }
        if (ports.held) {
            quiet.wait(Clock::now() + kHeldWait);
        } else {
            poller.wait(Clock::now() + kIdleWait);
        }
    }
}

int main_with(int argc, char** argv) {
    Supervision supervision;
    std::string run_dir_path;
    std::string model;
    std::string log_level = "info";
    FlagSet flags("detokenizer_proc", "Turns tokens into text, and finds stop texts.");
    flags.add("run-dir", &run_dir_path, "the tree's run directory, where its sockets are");
    flags.add("model", &model, "the model's directory, which has tokenizer.json");
    flags.add("log-level", &log_level, "trace, debug, info, warning, error or off");
    supervision.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (auto logging = init_logging("detokenizer_proc", log_level); !logging)
        return flags.fail(logging.error());

    if (auto attached = supervision.attach(); !attached) return supervision.fail(attached.error());
    const Result<bus::RunDir> run_dir = bus::RunDir::open(run_dir_path);
    if (!run_dir) return supervision.fail(run_dir.error());
    Result<std::shared_ptr<const text::Tokenizer>> tokenizer = text::Tokenizer::load(model);
    if (!tokenizer) return supervision.fail(tokenizer.error());
    const Result<int> descriptors = raise_descriptor_limit();
    if (!descriptors) return supervision.fail(descriptors.error());
    zmq::context_t context;
    // The number of replicas is unknown here, so the limit allows the most replicas.
    bus::SocketLimits limits = bus::kInnerLimits;
    limits.connections_max =
        std::min(bus::kReplicasMax + bus::kStrayConnectionsMax, *descriptors - kOwnDescriptors);
    auto inbox = bus::Socket::bind(context, bus::SocketKind::kPull, run_dir->detokenizer(), limits);
    if (!inbox) return supervision.fail(inbox.error());
    auto out = bus::Socket::connect(
        context, bus::SocketKind::kPush, run_dir->tokenizer(), bus::kInnerLimits
    );
    if (!out) return supervision.fail(out.error());
    Ports ports{*std::move(inbox), *std::move(out)};
    Detokenizer detokenizer(*std::move(tokenizer));
    supervision.say_ready("the tokenizer is loaded");
    run(detokenizer, ports, supervision);
    return 0;
}

}  // namespace
}  // namespace pitstop::detokenizer

int main(int argc, char** argv) {
    try {
        return pitstop::detokenizer::main_with(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "detokenizer_proc: %s\n", error.what());
        return 1;
    }
}
