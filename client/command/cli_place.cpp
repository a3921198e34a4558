#include "client/command/cli_place.h"

namespace pitstop {
namespace {

Error usage(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

std::string endpoint(const std::string& place) { return place.empty() ? "" : "tcp://" + place; }

}  // namespace

Result<> CliPlace::check(Needs needs) const {
    const bool is_remote = !tcp_door.empty() || !admin_tcp_door.empty() || !key.empty();
    if (!run_dir.empty() && is_remote)
        return usage("give either --run-dir, or --tcp-door and --key");
    if (!run_dir.empty()) return Ok{};
    if (!is_remote) return usage("--run-dir is missing");
    if (tcp_door.empty()) return usage("--tcp-door HOST:PORT is missing");
    if (key.empty()) return usage("a tcp door needs a key: --key FILE is missing");
    if (needs == Needs::kAdminDoor && admin_tcp_door.empty())
        return usage("this command needs the admin door: --admin-tcp-door HOST:PORT is missing");
    return Ok{};
}

Result<std::unique_ptr<Client>> CliPlace::connect(std::chrono::milliseconds timeout) const {
    return Client::connect(
        {.run_dir = run_dir,
         .data_endpoint = endpoint(tcp_door),
         .admin_endpoint = endpoint(admin_tcp_door),
         .key_file = key,
         .name = "pitstop_cli",
         .connect_timeout = timeout}
    );
}

}  // namespace pitstop
