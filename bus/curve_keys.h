// The keys of the tcp doors (CURVE, rfc.zeromq.org/spec/26): files, and the list of clients that a
// door admits. Keys are Z85 text of 40 characters, the format of ZeroMQ's own tools.
//
// `pitstop keygen` makes a directory of keys:
//
//   server.key          the tree's key pair; "public KEY" and "secret KEY" on lines of their own
//   data.keys           clients admitted at the data door: "NAME KEY" per line, # begins a comment
//   admin.keys          the same for the admin door
//   nodes.keys          machines whose ranks are admitted at the nodes' door (serve --nodes)
//   clients/NAME.key    a client's keys and the tree's public key ("server KEY"): enough to connect
//
// Files with a secret have mode 0600, and are refused with any other.
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

// All that a client needs to open a door.
struct ClientKey {
    CurveKeyPair pair{};
    std::string server_key{};  // the tree's public key: no other server can impersonate the tree
};

// Checks that ZeroMQ was built with CURVE. Errors: kUnsupported.
Result<> check_curve();

Result<CurveKeyPair> make_key_pair();

// Errors: kNotFound; kPermissionDenied if other users can read the file; kMalformed,
// naming the line.
Result<CurveKeyPair> read_server_key(const std::string& path);
Result<ClientKey> read_client_key(const std::string& path);

// Makes the directory with a server's key and empty lists. Errors: the directory has a key already.
Result<> make_key_dir(const std::string& dir);
enum class AllowedAt { kDataDoor, kBothDoors, kNodeDoor };
// Makes clients/NAME.key and adds it to the lists. Returns the file's path.
// Errors: the name exists already, or is invalid. A name has letters, digits and ._-, up to
// kKeyNameBytesMax, with neither . nor - first.
Result<std::string> add_client_key(const std::string& dir, const std::string& name, AllowedAt at);
// Takes the client off all lists. The client's file stays but opens nothing. Errors: no list has
// the client.
Result<> remove_client_key(const std::string& dir, const std::string& name);

// The clients that a door admits. Each call checks whether the file has changed, and if so reads it
// again. A file that cannot be read admits nobody.
class AllowedKeys {
  public:
    // After a key is taken off the list, has() may still accept the key for this long.
    static constexpr auto kLookEvery = std::chrono::milliseconds(500);

    // Errors: the file cannot be read, or a line has no valid key.
    static Result<AllowedKeys> open(std::string path);

    // Returns the name of the client with this key, by the file's current content; nothing if the
    // key is not on the list.
    std::optional<std::string> find(std::string_view public_key);
    // Returns whether a connected client may stay. Called for each of the client's messages.
    bool has(TimePoint now, std::string_view public_key);

  private:
    explicit AllowedKeys(std::string path) : path_(std::move(path)) {}
    Result<> read();
    void look();

    std::string path_;
    std::map<std::string, std::string, std::less<>> names_{};  // by public key
    struct stat read_at_ {};                                   // the file's state when it was read
    TimePoint next_look_{};
};

}  // namespace pitstop::bus
