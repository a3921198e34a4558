// The commands of the admin door: each makes one call and prints its answer.
#include "base/flags.h"
#include "client/command/cli.h"
#include "client/command/cli_place.h"
#include "client/command/cli_print.h"
#include "client/json_text.h"
#include "messages/enum_named.h"

#include <cstdio>
#include <filesystem>

namespace pitstop {
namespace {

// The flags of every command.
struct Common {
    CliPlace place{};
    bool json = false;
    double timeout_s = 60;

    void add_to(FlagSet& flags) {
        place.add_to(flags);
        flags.add("json", &json, "print the whole answer as one JSON object");
        flags.add("timeout-s", &timeout_s, "seconds for the whole call, more than 0");
    }
};

// Reads the arguments. Returns an exit code, or nothing to continue.
std::optional<int> read_arguments(
    FlagSet& flags, Common& common, int argc, char** argv, std::size_t num_positional_max
) {
    common.add_to(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (auto checked = common.place.check(CliPlace::Needs::kAdminDoor); !checked)
        return flags.fail(checked.error());
    if (!(common.timeout_s > 0 && common.timeout_s < 1e6)) {
        return flags.fail({ErrorCode::kInvalidArgument, "--timeout-s takes more than 0 seconds"});
    }
    if (flags.positional().size() > num_positional_max) {
        return flags.fail(make_error(
            ErrorCode::kInvalidArgument, "unexpected argument '{}'", flags.positional().back()
        ));
    }
    return std::nullopt;
}

template <class E>
Result<E> parse_enum(std::string_view flag, std::string_view text) {
    if (const auto value = messages::enum_named<E>(text)) return *value;
    return make_error(
        ErrorCode::kInvalidArgument,
        "--{} takes one of {}, not '{}'",
        flag,
        fmt::join(messages::EnumNames<E>::kNames, ", "),
        text
    );
}

// Makes the call and prints its answer; the exit code is 0 only if the answer is ok.
template <class Request, class Print>
int make_call(const Common& common, const Request& request, const Print& print) {
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(common.timeout_s * 1000));
    auto client = common.place.connect(timeout);
    if (!client) return cli_fail(client.error());
    const Result<messages::ReplyTo<Request>> reply = (*client)->call(request, timeout);
    if (!reply) return cli_fail(reply.error());
    if (common.json) {
        fmt::print("{}\n", json_text::to_json(*reply).dump());
    } else {
        print(*reply);
    }
    if constexpr (requires { reply->ok; }) {
        if (reply->ok) return 0;
        fmt::print(stderr, "pitstop: {}: {}\n", reply->verdict.code_name(), reply->verdict.message);
        return 1;
    }
    return 0;
}

int cli_pause(int argc, char** argv) {
    FlagSet flags("pitstop pause", "Stops generating; requests wait.");
    Common common;
    messages::PauseGeneration call;
    std::string mode = "in_place";
    flags.add(
        "mode",
        &mode,
        "running requests: abort (end them), in_place (freeze them), retract (queue them again) or "
        "wait (let them finish first)"
    );
    flags.add(
        "max-pause-s", &call.max_pause_s, "continue automatically after this many seconds; 0: never"
    );
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    const auto parsed = parse_enum<messages::PauseMode>("mode", mode);
    if (!parsed) return flags.fail(parsed.error());
    call.mode = *parsed;
    return make_call(common, call, [](const messages::PauseReply& reply) {
        for (const messages::PausePart& part : reply.parts) {
            fmt::print(
                "replica {}: {} frozen, {} retracted, {} aborted, {} waiting; paused after "
                "{:.3f} ms{}{}\n",
                raw(part.replica),
                part.num_frozen,
                part.num_retracted,
                part.num_aborted,
                part.num_waiting,
                static_cast<double>(part.elapsed_us) / 1000,
                part.verdict.message.empty() ? "" : "; ",
                part.verdict.message
            );
        }
    });
}

int cli_continue(int argc, char** argv) {
    FlagSet flags("pitstop continue", "Lets generation continue after a pause.");
    Common common;
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    return make_call(
        common,
        messages::ContinueGeneration{},
        [](const messages::ContinueReply& reply) {
            print_collected(reply.update);
            for (const messages::ContinuePart& part : reply.parts) {
                if (part.was_paused) {
                    fmt::print(
                        "replica {}: continued; was paused {:.3f} s\n",
                        raw(part.replica),
                        part.paused_s
                    );
                } else {
                    fmt::print("replica {}: {}\n", raw(part.replica), part.verdict.message);
                }
            }
        }
    );
}

int cli_abort(int argc, char** argv) {
    FlagSet flags("pitstop abort RID...", "Ends requests by exact id, with their output so far.");
    Common common;
    messages::Abort call;
    flags.add("all", &call.all, "end every open request");
    if (auto code = read_arguments(flags, common, argc, argv, messages::kAbortIdsMax)) return *code;
    call.rids = flags.positional();
    if (call.rids.empty() && !call.all)
        return flags.fail({ErrorCode::kInvalidArgument, "give the ids of requests, or --all"});
    return make_call(common, call, [](const messages::AbortReply& reply) {
        if (reply.results.empty()) fmt::print("no request was open\n");
        for (const messages::AbortResult& result : reply.results)
            fmt::print("{}  {}\n", result.rid, name_of(result.outcome));
    });
}

int cli_flush(int argc, char** argv) {
    FlagSet flags("pitstop flush", "Forgets all cached prefixes.");
    Common common;
    messages::FlushCache call;
    flags.add("wait", &call.wait_idle, "wait until no request holds pages");
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    return make_call(common, call, [](const messages::FlushReply& reply) {
        for (const messages::FlushPart& part : reply.parts) {
            if (part.verdict.is_done())
                fmt::print("replica {}: {} pages freed\n", raw(part.replica), part.pages_freed);
        }
    });
}

// The flags of update and stage.
struct UpdateFlags {
    std::string kv_policy = "keep";
    std::int64_t epoch = 0;
    bool direct = false;
    messages::UpdateSpec spec{};

    void add_to(FlagSet& flags) {
        flags.add("kv-policy", &kv_policy, "running requests: keep, recompute, drain or abort");
        flags.add("label", &spec.label, "label of the new version");
        flags.add(
            "epoch",
            &epoch,
            "epoch of the new version, above the serving version's; 0: the next epoch"
        );
        flags.add(
            "digest", &spec.digest, "required digest of the new version, 32 hex digits; empty: any"
        );
        flags.add(
            "partial",
            &spec.partial,
            "the checkpoint has only some tensors; all other tensors stay unchanged"
        );
        flags.add("allow-nonfinite", &spec.allow_nonfinite, "accept infinities and NaNs");
    }
    Result<messages::UpdateSpec> read(const FlagSet& flags) {
        if (flags.positional().empty())
            return make_error(ErrorCode::kInvalidArgument, "name a checkpoint directory");
        // The workers may have another working directory.
        spec.source.path = std::filesystem::absolute(flags.positional().front()).string();
        ASSIGN_OR_RETURN(spec.kv_policy, parse_enum<messages::KvPolicy>("kv-policy", kv_policy));
        if (epoch != 0) spec.epoch = Epoch{epoch};
        spec.mode = direct ? messages::UpdateMode::kDirect : messages::UpdateMode::kStaged;
        return spec;
    }
};

template <class Request>
int call_with_spec(FlagSet& flags, UpdateFlags& update, int argc, char** argv) {
    Common common;
    if (auto code = read_arguments(flags, common, argc, argv, 1)) return *code;
    const auto spec = update.read(flags);
    if (!spec) return flags.fail(spec.error());
    Request call;
    call.update = *spec;
    return make_call(common, call, print_update);
}

int cli_update(int argc, char** argv) {
    FlagSet flags("pitstop update DIR", "Swaps in a checkpoint while the tree generates.");
    UpdateFlags update;
    update.add_to(flags);
    flags.add(
        "direct",
        &update.direct,
        "pause, then overwrite the weights that serve, without a second copy"
    );
    return call_with_spec<messages::UpdateWeights>(flags, update, argc, argv);
}

int cli_stage(int argc, char** argv) {
    FlagSet flags(
        "pitstop stage DIR",
        "Stages a checkpoint, the first half of an update: commit or drop ends it."
    );
    UpdateFlags update;
    update.add_to(flags);
    return call_with_spec<messages::StageWeights>(flags, update, argc, argv);
}

int cli_commit(int argc, char** argv) {
    FlagSet flags("pitstop commit", "Commits what is staged: all ranks swap at one step boundary.");
    Common common;
    std::string kv_policy;
    flags.add(
        "kv-policy",
        &kv_policy,
        "running requests: keep, recompute, drain or abort; empty: the staged policy"
    );
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    messages::CommitWeights call;
    if (!kv_policy.empty()) {
        const auto parsed = parse_enum<messages::KvPolicy>("kv-policy", kv_policy);
        if (!parsed) return flags.fail(parsed.error());
        call.kv_policy = *parsed;
    }
    return make_call(common, call, print_update);
}

int cli_drop(int argc, char** argv) {
    FlagSet flags("pitstop drop", "Drops the staged weights.");
    Common common;
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    return make_call(common, messages::DropStage{}, print_update);
}

int cli_rollback(int argc, char** argv) {
    FlagSet flags("pitstop rollback", "Returns to the version before the last commit.");
    Common common;
    std::string kv_policy = "keep";
    flags.add("kv-policy", &kv_policy, "running requests: keep, recompute, drain or abort");
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    const auto parsed = parse_enum<messages::KvPolicy>("kv-policy", kv_policy);
    if (!parsed) return flags.fail(parsed.error());
    messages::RollbackWeights call;
    call.kv_policy = *parsed;
    return make_call(common, call, print_update);
}

int cli_digests(int argc, char** argv) {
    FlagSet flags("pitstop digests", "Digests the resident weights, on every rank.");
    Common common;
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    return make_call(common, messages::WeightDigests{}, [](const messages::DigestsReply& reply) {
        for (const messages::TensorInfo& tensor : reply.tensors) {
            fmt::print(
                "{}  {} {} {}\n",
                tensor.digest,
                tensor.name,
                tensor.dtype,
                fmt::join(tensor.shape, "x")
            );
        }
        fmt::print("{}  {}\n", reply.digest, version_text(reply.epoch, reply.label));
    });
}

int cli_label(int argc, char** argv) {
    FlagSet flags("pitstop label LABEL", "Gives the version that serves a new label.");
    Common common;
    messages::SetWeightLabel call;
    flags.add("abort-all", &call.abort_all, "also end all open requests");
    if (auto code = read_arguments(flags, common, argc, argv, 1)) return *code;
    if (flags.positional().empty())
        return flags.fail({ErrorCode::kInvalidArgument, "the label is missing: pitstop label LABEL"}
        );
    call.label = flags.positional().front();
    return make_call(common, call, [&](const messages::LabelReply& reply) {
        for (const messages::LabelPart& part : reply.parts) {
            fmt::print(
                "replica {}: {}, {} requests ended\n",
                raw(part.replica),
                version_text(part.epoch, call.label),
                part.num_aborted
            );
        }
    });
}

template <class Request>
int call_with_tags(FlagSet& flags, Request& call, int argc, char** argv) {
    Common common;
    if (auto code = read_arguments(flags, common, argc, argv, messages::kAllMemoryTags.size()))
        return *code;
    for (const std::string& name : flags.positional()) {
        const auto tag = parse_enum<messages::MemoryTag>("TAG", name);
        if (!tag) return flags.fail(tag.error());
        call.tags.push_back(*tag);
    }
    return make_call(common, call, print_memory);
}

int cli_load_adapter(int argc, char** argv) {
    FlagSet flags(
        "pitstop load-adapter NAME DIR",
        "Loads a LoRA adapter, or replaces the one of this name, while the tree generates."
    );
    Common common;
    messages::UpdateWeights call;
    flags.add("label", &call.update.label, "label of the adapter's new version");
    flags.add(
        "digest",
        &call.update.digest,
        "required digest of the adapter's new version, 32 hex digits; empty: any"
    );
    std::string policy = "finish";
    flags.add(
        "policy", &policy, "open requests of the replaced version: finish, keep or recompute"
    );
    flags.add("pinned", &call.update.adapter_pinned, "never evict this adapter (--adapter-memory)");
    if (auto code = read_arguments(flags, common, argc, argv, 2)) return *code;
    const auto parsed = parse_enum<messages::AdapterPolicy>("policy", policy);
    if (!parsed) return flags.fail(parsed.error());
    call.update.adapter_policy = *parsed;
    if (flags.positional().size() < 2) {
        return flags.fail(
            {ErrorCode::kInvalidArgument, "name the adapter and the directory that it is in"}
        );
    }
    call.update.adapter = flags.positional()[0];
    // The workers may have another working directory.
    call.update.source.path = std::filesystem::absolute(flags.positional()[1]).string();
    call.update.mode = messages::UpdateMode::kStaged;
    call.update.kv_policy = messages::KvPolicy::kKeep;
    if (auto problem = messages::invalid_adapter_name(call.update.adapter))
        return flags.fail({ErrorCode::kInvalidArgument, *problem});
    return make_call(common, call, print_update);
}

int cli_rollback_adapter(int argc, char** argv) {
    FlagSet flags(
        "pitstop rollback-adapter NAME", "Returns to the version before the adapter's last load."
    );
    Common common;
    messages::RollbackWeights call;
    std::string policy = "finish";
    flags.add(
        "policy", &policy, "open requests of the version that serves: finish, keep or recompute"
    );
    if (auto code = read_arguments(flags, common, argc, argv, 1)) return *code;
    const auto parsed = parse_enum<messages::AdapterPolicy>("policy", policy);
    if (!parsed) return flags.fail(parsed.error());
    call.adapter_policy = *parsed;
    if (flags.positional().empty())
        return flags.fail({ErrorCode::kInvalidArgument, "name the adapter"});
    call.adapter = flags.positional().front();
    if (auto problem = messages::invalid_adapter_name(call.adapter))
        return flags.fail({ErrorCode::kInvalidArgument, *problem});
    return make_call(common, call, print_update);
}

int cli_unload_adapter(int argc, char** argv) {
    FlagSet flags(
        "pitstop unload-adapter NAME",
        "Unloads an adapter: new requests cannot use it, open ones continue with it."
    );
    Common common;
    messages::UnloadAdapter call;
    if (auto code = read_arguments(flags, common, argc, argv, 1)) return *code;
    if (flags.positional().empty())
        return flags.fail({ErrorCode::kInvalidArgument, "name the adapter"});
    call.name = flags.positional().front();
    return make_call(common, call, [&](const messages::AdapterReply& reply) {
        for (const messages::AdapterPart& part : reply.parts) {
            if (!part.verdict.is_done()) continue;
            if (part.was_lost) {
                fmt::print(
                    "replica {}: {} was lost, and is given up\n",
                    raw(part.replica),
                    adapter_text(part.adapter)
                );
                continue;
            }
            fmt::print(
                "replica {}: {} is unloaded; {} requests go on with it\n",
                raw(part.replica),
                adapter_text(part.adapter),
                part.num_requests
            );
        }
    });
}

int cli_release(int argc, char** argv) {
    FlagSet flags(
        "pitstop release [TAG...]", "Gives memory back: weights, kv_cache; default: all."
    );
    messages::ReleaseMemory call;
    flags.add(
        "keep-weights",
        &call.keep_weights,
        "keep the weights in host memory until resume; without it they are discarded"
    );
    return call_with_tags(flags, call, argc, argv);
}

int cli_resume(int argc, char** argv) {
    FlagSet flags("pitstop resume [TAG...]", "Takes released memory again; default: all.");
    messages::ResumeMemory call;
    return call_with_tags(flags, call, argc, argv);
}

int cli_shutdown(int argc, char** argv) {
    FlagSet flags("pitstop shutdown", "Ends the tree.");
    Common common;
    messages::Shutdown call;
    flags.add(
        "drain-s",
        &call.drain_s,
        "seconds that open requests may still run while new ones are refused"
    );
    if (auto code = read_arguments(flags, common, argc, argv, 0)) return *code;
    return make_call(common, call, [](const messages::ShutdownReply& reply) {
        fmt::print("the tree ends; {} requests are open\n", reply.open_requests);
    });
}

struct Command {
    std::string_view name;
    int (*run)(int argc, char** argv);
};
constexpr std::array<Command, 17> kCommands{{
    {"pause", cli_pause},
    {"continue", cli_continue},
    {"abort", cli_abort},
    {"flush", cli_flush},
    {"update", cli_update},
    {"stage", cli_stage},
    {"commit", cli_commit},
    {"drop", cli_drop},
    {"rollback", cli_rollback},
    {"digests", cli_digests},
    {"label", cli_label},
    {"load-adapter", cli_load_adapter},
    {"rollback-adapter", cli_rollback_adapter},
    {"unload-adapter", cli_unload_adapter},
    {"release", cli_release},
    {"resume", cli_resume},
    {"shutdown", cli_shutdown},
}};

}  // namespace

std::optional<int> cli_control(std::string_view command, int argc, char** argv) {
    for (const Command& known : kCommands) {
        if (known.name == command) return known.run(argc, argv);
    }
    return std::nullopt;
}

}  // namespace pitstop
