// Tests key files, and doors that require their keys, over real sockets.
#include "bus/curve_keys.h"

#include "bus/key_guard.h"
#include "bus/poller.h"
#include "bus/socket.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace pitstop::bus {
namespace {

using namespace std::chrono_literals;

constexpr Duration kDeadline = 60s;

class CurveKeysTest : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/pitstop-test-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern), nullptr);
        path_ = pattern;
        keys_ = path_ + "/keys";
        const Result<> made = make_key_dir(keys_);
        ASSERT_TRUE(made) << made.error().message;
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    [[nodiscard]] std::string in_keys(const std::string& name) const { return keys_ + "/" + name; }
    [[nodiscard]] std::string add(const std::string& name, AllowedAt at = AllowedAt::kDataDoor) {
        const Result<std::string> path = add_client_key(keys_, name, at);
        EXPECT_TRUE(path) << path.error().message;
        return path ? *path : "";
    }
    static mode_t mode_of(const std::string& path) {
        struct stat info {};
        EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
        return info.st_mode & 0777;
    }
    static void write(const std::string& path, const std::string& text) {
        std::ofstream(path) << text;
    }

    std::string path_{};
    std::string keys_{};
};

TEST_F(CurveKeysTest, FilesOfKeygenAreClosedToOthersAndReadBack) {
    const std::string file = add("alice", AllowedAt::kBothDoors);
    EXPECT_EQ(file, in_keys("clients/alice.key"));
    EXPECT_EQ(mode_of(keys_), 0700U);
    for (const std::string& path :
         {in_keys("server.key"), in_keys("data.keys"), in_keys("admin.keys"), file})
        EXPECT_EQ(mode_of(path), 0600U) << path;
    const auto server = read_server_key(in_keys("server.key"));
    const auto client = read_client_key(file);
    ASSERT_TRUE(server && client);
    EXPECT_EQ(client->server_key, server->public_key);
    EXPECT_NE(client->pair.secret_key, server->secret_key);
    for (const char* list : {"data.keys", "admin.keys"}) {
        auto allowed = AllowedKeys::open(in_keys(list));
        ASSERT_TRUE(allowed) << allowed.error().message;
        EXPECT_EQ(allowed->find(client->pair.public_key), "alice");
        EXPECT_EQ(allowed->find(server->public_key), std::nullopt);
    }
    // ZeroMQ derives the public key from the secret key: the file must have the same one.
    std::array<char, 41> derived{};
    ASSERT_EQ(::zmq_curve_public(derived.data(), client->pair.secret_key.c_str()), 0);
    EXPECT_EQ(client->pair.public_key, derived.data());
}

TEST_F(CurveKeysTest, NothingIsOverwrittenAndNoNameLeavesTheDirectory) {
    EXPECT_EQ(make_key_dir(keys_).error().code, ErrorCode::kAlreadyExists);
    static_cast<void>(add("alice"));
    EXPECT_EQ(
        add_client_key(keys_, "alice", AllowedAt::kDataDoor).error().code, ErrorCode::kAlreadyExists
    );
    for (const std::string& name :
         {std::string(),
          std::string("../x"),
          std::string("a/b"),
          std::string("a b"),
          std::string("a\nb"),
          std::string(".."),
          std::string("-x"),
          std::string("--admin"),
          std::string(65, 'a')}) {
        const auto added = add_client_key(keys_, name, AllowedAt::kDataDoor);
        ASSERT_FALSE(added) << name;
        EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
    }
}

TEST_F(CurveKeysTest, AFileThatIsNoKeyIsRefusedByNameWithoutItsSecret) {
    const std::string file = add("alice");
    const auto code_of = [&] { return read_client_key(file).error().code; };
    ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
    EXPECT_EQ(code_of(), ErrorCode::kPermissionDenied);
    ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
    const std::string key(40, 'k');
    for (const std::string& text : {
             std::string(),
             "public " + key + "\nsecret " + key + "\n",
             "public " + key + "\nsecret " + key + "\nsecret " + key + "\n",
             "public " + key + "\nsecret " + key + "\nserver " + key + "k\n",
             "public " + key + "\nsecret " + key + "\nserver\n",
             std::string(100'000, 'a'),
             std::string(1000, '\0'),
         }) {
        write(file, text);
        const auto read = read_client_key(file);
        ASSERT_FALSE(read) << text.substr(0, 200);
        EXPECT_EQ(read.error().code, ErrorCode::kMalformed);
        EXPECT_NE(read.error().message.find(file), std::string::npos);
        EXPECT_EQ(read.error().message.find(key), std::string::npos) << read.error().message;
    }
    write(file, std::string(kKeyFileBytesMax + 1, '\n'));
    EXPECT_EQ(code_of(), ErrorCode::kTooLarge);
    std::filesystem::remove(file);
    EXPECT_EQ(code_of(), ErrorCode::kNotFound);
}

TEST_F(CurveKeysTest, AListIsReadAgainWhereItHasChangedAndABrokenOneLetsNobodyIn) {
    const auto alice = read_client_key(add("alice"));
    auto allowed = AllowedKeys::open(in_keys("data.keys"));
    ASSERT_TRUE(alice && allowed);
    const std::string bob = read_client_key(add("bob"))->pair.public_key;
    EXPECT_EQ(allowed->find(bob), "bob");
    ASSERT_TRUE(remove_client_key(keys_, "bob"));
    EXPECT_EQ(allowed->find(bob), std::nullopt);
    EXPECT_EQ(allowed->find(alice->pair.public_key), "alice");
    EXPECT_EQ(remove_client_key(keys_, "bob").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(remove_client_key(keys_, "ali").error().code, ErrorCode::kNotFound);

    const TimePoint start = Clock::now();
    EXPECT_TRUE(allowed->has(start, alice->pair.public_key));
    write(in_keys("data.keys"), "alice\n");
    EXPECT_EQ(allowed->find(alice->pair.public_key), std::nullopt);
    EXPECT_FALSE(allowed->has(start + AllowedKeys::kLookEvery, alice->pair.public_key));
    write(in_keys("data.keys"), fmt::format("  alice\t{} \r\n\n# bob\n", alice->pair.public_key));
    EXPECT_EQ(allowed->find(alice->pair.public_key), "alice");
    ASSERT_EQ(::chmod(in_keys("data.keys").c_str(), 0662), 0);
    EXPECT_EQ(allowed->find(alice->pair.public_key), std::nullopt);
    std::filesystem::remove(in_keys("data.keys"));
    EXPECT_EQ(allowed->find(alice->pair.public_key), std::nullopt);
}

class TcpDoorTest : public CurveKeysTest {
  protected:
    void SetUp() override {
        CurveKeysTest::SetUp();
        auto guard = KeyGuard::open(context_);
        ASSERT_TRUE(guard) << guard.error().message;
        guard_ = *std::move(guard);
        guard_->allow("data", *AllowedKeys::open(in_keys("data.keys")));
        auto door = Socket::bind(
            context_, SocketKind::kRouter, "ipc://" + path_ + "/data.sock", kDoorLimits
        );
        ASSERT_TRUE(door);
        door_ = *std::move(door);
        const Result<> bound = door_->bind_too(
            "tcp://127.0.0.1:0",
            kTcpDoorLimits,
            {.secret_key = read_server_key(in_keys("server.key"))->secret_key, .domain = "data"}
        );
        ASSERT_TRUE(bound) << bound.error().message;
        endpoint_ = door_->listeners().back()->endpoint();
    }
    Socket connect(const std::string& endpoint, const std::optional<ClientKey>& key) {
        auto socket = Socket::connect(context_, SocketKind::kDealer, endpoint, kDoorLimits, key);
        EXPECT_TRUE(socket) << socket.error().message;
        EXPECT_EQ(socket->send({"hello", "", {}}), Sent::kSent);
        return *std::move(socket);
    }
    // Returns the next message, or nothing once `is_over` holds.
    std::optional<Received> receive(const std::function<bool()>& is_over = [] { return false; }) {
        Poller poller;
        poller.add(*door_);
        guard_->add_to(poller);
        for (const TimePoint deadline = Clock::now() + kDeadline; Clock::now() < deadline;) {
            guard_->answer_all();
            if (auto received = door_->receive()) return received;
            if (is_over()) return std::nullopt;
            poller.wait(Clock::now() + 5ms);
        }
        ADD_FAILURE() << "nothing came";
        return std::nullopt;
    }

    zmq::context_t context_{};
    std::optional<KeyGuard> guard_{};
    std::optional<Socket> door_{};
    std::string endpoint_{};
};

TEST_F(TcpDoorTest, AListedKeyComesInAndIsNamedAndLocalClientsNeedNone) {
    const auto key = read_client_key(add("alice"));
    const Socket remote = connect(endpoint_, *key);
    const auto first = receive();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->key, key->pair.public_key);
    const Socket local = connect("ipc://" + path_ + "/data.sock", std::nullopt);
    const auto second = receive();
    ASSERT_TRUE(second);
    EXPECT_EQ(second->key, "");
    EXPECT_EQ(guard_->num_refused("data"), 0);
}

TEST_F(TcpDoorTest, AKeyThatIsNotListedIsRefusedAndCountedAndMayBeAddedLater) {
    const auto key = read_client_key(add("alice"));
    ASSERT_TRUE(remove_client_key(keys_, "alice"));
    const Socket client = connect(endpoint_, *key);
    EXPECT_FALSE(receive([&] { return guard_->num_refused("data") == 1; }));
    write(in_keys("data.keys"), fmt::format("alice {}\n", key->pair.public_key));
    const Socket again =
        connect(endpoint_, *key);  // the first client was refused and no longer retries
    EXPECT_TRUE(receive());
}

TEST_F(TcpDoorTest, AWrongServerKeyNeverGetsAsFarAsAQuestion) {
    auto key = read_client_key(add("alice"));
    ASSERT_TRUE(key);
    key->server_key = make_key_pair()->public_key;
    const Socket client = connect(endpoint_, *key);
    const Listener& listener = *door_->listeners().back();
    EXPECT_FALSE(receive([&] { return listener.counts().silent_total >= 2; }));
    EXPECT_EQ(guard_->num_refused("data"), 0);
}

TEST_F(TcpDoorTest, WithoutAKeyNoSocketIsConnectedOrBoundAtTcp) {
    const auto client = Socket::connect(context_, SocketKind::kDealer, endpoint_, kDoorLimits);
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code, ErrorCode::kInvalidArgument);
    const auto door = Socket::bind(context_, SocketKind::kRouter, "tcp://127.0.0.1:0", kDoorLimits);
    ASSERT_FALSE(door);
    EXPECT_EQ(door.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pitstop::bus
