// The place of a command's tree: its run directory, or its doors on another machine.
#pragma once

#include "base/flags.h"
#include "client/client.h"

#include <chrono>
#include <memory>
#include <string>

namespace pitstop {

struct CliPlace {
    std::string run_dir{};
    std::string tcp_door{};  // HOST:PORT
    std::string admin_tcp_door{};
    std::string key{};  // a file

    void add_to(FlagSet& flags) {
        flags.add("run-dir", &run_dir, "the tree's run directory; not with --tcp-door");
        flags.add(
            "tcp-door",
            &tcp_door,
            "HOST:PORT of the data door of a tree on another machine; needs --key"
        );
        flags.add(
            "admin-tcp-door",
            &admin_tcp_door,
            "HOST:PORT of the same tree's admin door, for commands that need it"
        );
        flags.add("key", &key, "a client's key file for --tcp-door, made by pitstop keygen");
    }

    enum class Needs { kDataDoor, kAdminDoor };
    // Returns what is missing or superfluous, as a usage error.
    [[nodiscard]] Result<> check(Needs needs) const;
    [[nodiscard]] Result<std::unique_ptr<Client>> connect(std::chrono::milliseconds timeout) const;
};

}  // namespace pitstop
