// Makes the keys of the tcp doors. Needs no running tree.
#include "base/flags.h"
#include "bus/curve_keys.h"
#include "client/command/cli.h"

#include <optional>
#include <string>

namespace pitstop {

int cli_keygen(int argc, char** argv) {
    FlagSet flags(
        "pitstop keygen DIR",
        "Makes the keys of the tcp doors. Without a flag: a directory with the tree's own key, for "
        "serve --door-keys DIR. With --client: a client's key, DIR/clients/NAME.key; the doors "
        "admit it from then on, a running tree's too. With --node: the key of a machine of serve "
        "--nodes, whose ranks are admitted."
    );
    std::optional<std::string> client;
    std::optional<std::string> node;
    std::optional<std::string> removed;
    bool is_admin = false;
    flags.add("client", &client, "NAME of a new client that the data door admits");
    flags.add("admin", &is_admin, "with --client: the admin door admits the client, too");
    flags.add("node", &node, "NAME of a new machine whose ranks the nodes' door admits");
    flags.add("remove", &removed, "NAME of a client or machine that the doors no longer admit");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (flags.positional().size() != 1)
        return flags.fail({ErrorCode::kInvalidArgument, "name one directory"});
    if ((client ? 1 : 0) + (node ? 1 : 0) + (removed ? 1 : 0) > 1)
        return flags.fail(
            {ErrorCode::kInvalidArgument, "give only one of --client, --node and --remove"}
        );
    if (is_admin && !client)
        return flags.fail({ErrorCode::kInvalidArgument, "--admin needs --client"});
    const std::string& dir = flags.positional().front();
    if (client || node) {
        bus::AllowedAt at = is_admin ? bus::AllowedAt::kBothDoors : bus::AllowedAt::kDataDoor;
        if (node) at = bus::AllowedAt::kNodeDoor;
        const Result<std::string> path = bus::add_client_key(dir, node ? *node : *client, at);
        if (!path) return cli_fail(path.error());
        fmt::print("{}\n", *path);
        return 0;
    }
    if (removed) {
        const Result<> done = bus::remove_client_key(dir, *removed);
        return done ? 0 : cli_fail(done.error());
    }
    const Result<> made = bus::make_key_dir(dir);
    return made ? 0 : cli_fail(made.error());
}

}  // namespace pitstop
