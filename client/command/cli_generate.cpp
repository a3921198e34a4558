#include "base/flags.h"
#include "base/time.h"
#include "client/command/cli.h"
#include "client/command/cli_place.h"
#include "client/json_text.h"
#include "client/standstill.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <sys/signal.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace pitstop {
namespace {

volatile std::sig_atomic_t was_interrupted = 0;

// Adds a flag for each sampling parameter that a flag can express: a number, a text, or a switch
// that is off by default.
void add_sampling_flags(FlagSet& flags, messages::SamplingParams& params) {
    params.fields([&]<class T>(std::string_view name, T& value, std::string_view meaning) {
        if constexpr (requires { flags.add(name, &value, meaning); }) {
            if constexpr (std::is_same_v<T, bool>) {
                if (value) return;
            }
            std::string help(meaning);
            if constexpr (std::is_same_v<T, std::vector<std::string>>) help += "; may be repeated";
            std::string flag(name);
            std::ranges::replace(flag, '_', '-');
            flags.add(flag, &value, help);
        }
    });
}

struct GenerateFlags {
    CliPlace place{};
    messages::SamplingParams sampling{};
    bool logprobs = false;
    std::int64_t top_logprobs = 0;
    bool json = false;
    bool no_stream = false;
    std::optional<std::int64_t> replica{};
    std::string adapter{};
    double timeout_s = 0;
    double connect_timeout_s = 10;
    std::string update_to{};
    std::string update_label{};
    std::int64_t update_after = 16;

    void add_to(FlagSet& flags) {
        place.add_to(flags);
        add_sampling_flags(flags, sampling);
        flags.add(
            "logprobs",
            &logprobs,
            "print a line per token: id, logprob; with --json: add both as fields"
        );
        flags.add(
            "top-logprobs",
            &top_logprobs,
            "with --json: print this many of the most probable tokens per position"
        );
        flags.add("json", &json, "print a JSON object per chunk instead of text");
        flags.add("no-stream", &no_stream, "print all output at the end, as one chunk");
        flags.add(
            "replica", &replica, "number of the replica to run on, from 0; absent: the least loaded"
        );
        flags.add("adapter", &adapter, "name of the loaded adapter to generate with; empty: none");
        flags.add("timeout-s", &timeout_s, "give up after this many seconds; 0: never");
        flags.add(
            "connect-timeout-s", &connect_timeout_s, "seconds to wait for the tree to answer"
        );
        flags.add(
            "update-to", &update_to, "update to this checkpoint directory while the text streams"
        );
        flags.add(
            "update-after",
            &update_after,
            "with --update-to: output tokens before the update begins"
        );
        flags.add("update-label", &update_label, "with --update-to: label of the new version");
    }

    [[nodiscard]] messages::Generate request(std::string prompt) const {
        messages::Generate request;
        request.text = std::move(prompt);
        request.sampling = sampling;
        // -1: as many tokens as fit, which an absent value means in the message.
        if (request.sampling.max_new_tokens == -1) request.sampling.max_new_tokens.reset();
        if (request.sampling.top_k == -1) request.sampling.top_k.reset();  // -1: all tokens
        request.logprobs.enabled = logprobs || top_logprobs > 0;
        request.logprobs.top = top_logprobs;
        request.stream = !no_stream;
        if (replica != -1) request.replica = replica;
        request.adapter = adapter;
        return request;
    }
};

std::chrono::milliseconds to_ms(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void print_chunk(const messages::OutputChunk& chunk, const GenerateFlags& flags) {
    if (flags.json) {
        // Trees do not split code points, but the library does not rely on that: a
        // newer tree might.
        fmt::print(
            "{}\n",
            json_text::to_json(chunk).dump(
                -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace
            )
        );
    } else if (flags.logprobs) {
        for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
            const bool has_logprob = i < chunk.logprobs.size();
            fmt::print(
                "{:>8} {:>10}{}\n",
                raw(chunk.tokens[i]),
                has_logprob ? fmt::format("{:.5f}", chunk.logprobs[i]) : "-",
                i + 1 == chunk.tokens.size() && !chunk.text.empty() ? "  " + chunk.text : ""
            );
        }
    } else {
        fmt::print("{}", chunk.text);
    }
    std::fflush(stdout);
}

// Sends an update while the request streams, and prints its answer when the request has ended.
class UpdateMeanwhile {
  public:
    UpdateMeanwhile(Client& client, const GenerateFlags& flags) : client_(client), flags_(flags) {}

    void count(const messages::OutputChunk& chunk) {
        num_tokens_ += static_cast<std::int64_t>(chunk.tokens.size());
        if (flags_.update_to.empty() || reply_.valid() || num_tokens_ < flags_.update_after) return;
        messages::UpdateWeights call;
        call.update.source.path = std::filesystem::absolute(flags_.update_to).string();
        call.update.label = flags_.update_label;
        auto promise = std::make_shared<std::promise<Result<messages::UpdateReply>>>();
        reply_ = promise->get_future();
        client_.call<messages::UpdateWeights>(
            std::move(call),
            [promise](Result<messages::UpdateReply> reply) {
                promise->set_value(std::move(reply));
            },
            kTimeout
        );
    }

    // Returns the exit code.
    int finish() {
        if (!reply_.valid()) return 0;
        // the call's deadline ends this wait
        const Result<messages::UpdateReply> reply = reply_.get();
        if (!reply) return cli_fail(reply.error());
        if (flags_.json) {
            nlohmann::ordered_json line;
            line["update"] = json_text::to_json(*reply);
            fmt::print("{}\n", line.dump());
        } else if (reply->ok) {
            fmt::print(
                stderr, "updated to version {}, digest {}\n", raw(reply->epoch), reply->digest
            );
        } else {
            fmt::print(
                stderr, "pitstop: {}: {}\n", reply->verdict.code_name(), reply->verdict.message
            );
        }
        return reply->ok ? 0 : 1;
    }

  private:
    static constexpr std::chrono::seconds kTimeout{60};

    Client& client_;
    const GenerateFlags& flags_;
    std::int64_t num_tokens_ = 0;
    std::future<Result<messages::UpdateReply>> reply_{};
};

// Asks why there is no output; nothing if the tree generates, or there is no admin door to ask.
std::optional<std::string> why_it_waits(Client& client) {
    constexpr std::chrono::milliseconds kPatience{1000};
    const Result<messages::StatusReply> status = client.status(kPatience);
    return status ? why_it_stands(*status) : std::nullopt;
}

// Tells a waiting user the reason: one line on standard error per standstill.
class Silence {
  public:
    explicit Silence(Client& client) : client_(client) {}

    void end() {
        begin_ = Clock::now();
        is_told_ = false;
    }
    void look() {
        if (is_told_ || Clock::now() - begin_ < kSilenceMax) return;
        if (const auto why = why_it_waits(client_)) {
            fmt::print(stderr, "pitstop: waiting: {}\n", *why);
            is_told_ = true;
        } else {
            begin_ = Clock::now();  // the tree can generate: the prompt may be long
        }
    }

  private:
    Client& client_;
    TimePoint begin_ = Clock::now();
    bool is_told_ = false;
};

int fail_with(Client& client, const messages::Finish& finish) {
    Error error = finish.verdict.error();
    if (error.code == ErrorCode::kDeadlineExceeded) {
        if (const auto why = why_it_waits(client)) error.message += ": " + *why;
    }
    return cli_fail(error);
}

// Prints until the end. A first Ctrl-C cancels: the output so far stays.
int print_stream(
    Client& client, Stream& stream, UpdateMeanwhile& update, const GenerateFlags& flags
) {
    bool is_cancelled = false;
    bool ends_line = true;
    Silence silence(client);
    for (;;) {
        const std::optional<messages::OutputChunk> chunk =
            stream.next(std::chrono::milliseconds(100));
        if (was_interrupted != 0 && !std::exchange(is_cancelled, true)) stream.cancel();
        if (!chunk) {
            silence.look();
            continue;
        }
        silence.end();
        if (!chunk->text.empty()) ends_line = chunk->text.back() == '\n';
        const bool is_error =
            chunk->finish && chunk->finish->reason == messages::FinishReason::kError;
        if (!is_error || flags.json || !chunk->text.empty()) print_chunk(*chunk, flags);
        update.count(*chunk);
        // the reader closed the pipe; the stream cancels itself
        if (std::ferror(stdout) != 0) return 1;
        if (!chunk->finish) continue;
        if (!flags.json && !flags.logprobs && !ends_line) fmt::print("\n");
        if (is_error) {
            return fail_with(client, *chunk->finish);
        }
        if (const int code = update.finish(); code != 0) return code;
        return is_cancelled ? 130 : 0;
    }
}

}  // namespace

int cli_generate(int argc, char** argv) {
    FlagSet flags(
        "pitstop generate", "Streams a prompt's continuation: \"prompt\", or - for standard input."
    );
    GenerateFlags values;
    values.add_to(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    const auto needs =
        values.update_to.empty() ? CliPlace::Needs::kDataDoor : CliPlace::Needs::kAdminDoor;
    if (auto checked = values.place.check(needs); !checked) return flags.fail(checked.error());
    if (flags.positional().size() != 1) {
        return flags.fail({ErrorCode::kInvalidArgument, "give one prompt, in quotes"});
    }
    std::string prompt = flags.positional().front();
    if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});

    auto client = values.place.connect(to_ms(values.connect_timeout_s));
    if (!client) return cli_fail(client.error());
    std::signal(SIGINT, [](int) { was_interrupted = 1; });
    std::signal(SIGPIPE, SIG_IGN);
    Stream stream = (*client)->generate(
        values.request(std::move(prompt)),
        values.timeout_s > 0 ? to_ms(values.timeout_s) : Client::kForever
    );
    UpdateMeanwhile update(**client, values);
    return print_stream(**client, stream, update, values);
}

}  // namespace pitstop
