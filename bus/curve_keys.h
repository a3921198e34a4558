// Handles the keys of the tcp doors (CURVE, rfc.zeromq.org/spec/26): files, and the list of the
// clients that a door lets in. Keys are Z85 text of 40 characters, as ZeroMQ's own tools have them.
//
// `pitstop keygen` makes a directory of keys:
//
//   server.key          the tree's key pair; "public KEY" and "secret KEY" on lines of their own
//   data.keys           who may come in at the data door: "NAME KEY" per line, # begins a comment
//   admin.keys          the same at the admin door
//   nodes.keys          which machines' ranks may come in at the nodes' door (serve --nodes)
//   clients/NAME.key    a client's key pair and the tree's public key ("server KEY"): all it needs
//
// Files with a secret are closed to others (mode 0600), and refused if they are not.
// Bounded: kKeyFileBytesMax per file, kAllowedMax keys per list.
#pragma once

#include "base/result.h"
#include "base/time.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/types.h>

namespace pitstop::bus {

inline constexpr std::size_t kKeyFileBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kAllowedMax = 8192;
inline constexpr std::size_t kKeyNameBytesMax = 64;

struct CurveKeyPair {
    std::string public_key{};
    std::string secret_key{};
};

// Holds all that a client needs to open a door.
struct ClientKey {
    CurveKeyPair pair{};
    std::string server_key{};  // the tree's public key; no other server can answer in its place
};

// Checks that ZeroMQ was built with CURVE. Errors: kUnsupported.
Result<> check_curve();

Result<CurveKeyPair> make_key_pair();

// Errors: kNotFound; kPermissionDenied, others can read it; kMalformed, naming the line.
Result<CurveKeyPair> read_server_key(const std::string& path);
Result<ClientKey> read_client_key(const std::string& path);

// Makes the directory with a server's key and empty lists. Errors: it has a key already.
Result<> make_key_dir(const std::string& dir);
enum class AllowedAt { kDataDoor, kBothDoors, kNodeDoor };
// Makes clients/NAME.key and adds it to the lists. Returns the file's path.
// Errors: the name is taken, or is no name: letters, digits and ._- up to kKeyNameBytesMax, with
// neither . nor - first.
Result<std::string> add_client_key(const std::string& dir, const std::string& name, AllowedAt at);
// Takes the client off all lists; its file stays, and opens nothing. Errors: it is on none.
Result<> remove_client_key(const std::string& dir, const std::string& name);

// Knows the clients that a door lets in, as the file says now: it is looked at again whenever
// somebody asks, and read again where it has changed. One that cannot be read lets nobody in.
class AllowedKeys {
  public:
    // A key that was taken off the list may still be believed by has() for this long.
    static constexpr auto kLookEvery = std::chrono::milliseconds(500);

    // Errors: it cannot be read, or a line is no key.
    static Result<AllowedKeys> open(std::string path);

    // Returns the name of that key's client, as the file says at this moment; nothing if it may not
    // come in.
    std::optional<std::string> find(std::string_view public_key);
    // Tells whether a client that is in may stay in; asked for each of its messages.
    bool has(TimePoint now, std::string_view public_key);

  private:
    explicit AllowedKeys(std::string path) : path_(std::move(path)) {}
    Result<> read();
    void look();

    std::string path_;
    std::map<std::string, std::string, std::less<>> names_{};  // by public key
    struct stat read_at_ {};                                   // the file's, when it was read
    TimePoint next_look_{};
};

}  // namespace pitstop::bus
