// Fakes a door without a tree behind it: it answers greetings by itself and leaves every other
// message to the test. Its sockets live in a private directory, as a tree's do.
//
// Thread: its own thread owns the sockets; any thread may call take() and send().
#pragma once

#include "base/mutex.h"
#include "base/time.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "messages/calls.h"
#include "messages/codec.h"
#include "messages/door_envelope.h"
#include "messages/greeting.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace pitstop {

class TempDir {
  public:
    TempDir() {
        std::string name = "/tmp/pitstop_test.XXXXXX";
        path_ = ::mkdtemp(name.data());
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

struct DoorMessage {
    messages::Door door{};
    std::string peer{};
    messages::Frames frames{};
    std::string tree{};  // the tree that the message names
};

class FakeDoor {
  public:
    // Answers a greeting with `greeting_error`, or with a HelloReply if that is empty.
    explicit FakeDoor(const std::string& run_dir, std::optional<Error> greeting_error = {})
        : tree_(fmt::format("tree {}", next_tree.fetch_add(1))),
          greeting_error_(std::move(greeting_error)),
          wake_fd_(::eventfd(0, EFD_NONBLOCK)) {
        const auto dir = bus::RunDir::open(run_dir);
        CHECK(dir.has_value());
        for (const std::string& endpoint : {dir->data_door(), dir->admin_door()}) {
            auto socket =
                bus::Socket::bind(context_, bus::SocketKind::kRouter, endpoint, bus::kDoorLimits);
            CHECK(socket.has_value());
            socket->set_linger_ms(1000);
            sockets_.push_back(*std::move(socket));
        }
        thread_ = std::thread([this] { run(); });
    }
    // Ends like a process that dies: sent messages are delivered, then the connections close.
    ~FakeDoor() {
        is_stopping_ = true;
        ::eventfd_write(wake_fd_, 1);
        thread_.join();
        ::close(wake_fd_);
    }

    [[nodiscard]] std::string tree() {
        const MutexLock lock(mutex_);
        return tree_;
    }
    // Returns the tree that the last taken message was for.
    [[nodiscard]] std::string tree_of_last() {
        const MutexLock lock(mutex_);
        return tree_of_last_;
    }
    // Replaces the tree by another, behind the existing connections.
    void become(std::string tree) {
        const MutexLock lock(mutex_);
        tree_ = std::move(tree);
    }

    // Takes the next message of that type from a client; other messages wait.
    template <class Message>
    std::pair<std::string, Message> take() {
        MutexLock lock(mutex_);
        const auto is_asked_for = [](const DoorMessage& m) {
            return m.frames.type == Message::kType;
        };
        const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
        auto found = std::ranges::find_if(received_, is_asked_for);
        while (found == received_.end()) {
            CHECK(arrived_.wait_until(lock, deadline));
            found = std::ranges::find_if(received_, is_asked_for);
        }
        const DoorMessage message = *found;
        received_.erase(found);
        tree_of_last_ = message.tree;
        auto decoded = decode<Message>(message.frames, messages::UnknownFields::kRefuse);
        CHECK(decoded.has_value());
        return {message.peer, *std::move(decoded)};
    }

    // Returns whether a message of that type has arrived and was not taken.
    template <class Message>
    bool has() {
        const MutexLock lock(mutex_);
        return std::any_of(received_.begin(), received_.end(), [](const DoorMessage& m) {
            return m.frames.type == Message::kType;
        });
    }

    void send(messages::Door door, const std::string& peer, messages::Frames frames) {
        const MutexLock lock(mutex_);
        to_send_.push_back({door, peer, std::move(frames)});
        ::eventfd_write(wake_fd_, 1);
    }
    void send_chunk(const std::string& peer, messages::OutputChunk chunk) {
        messages::Outputs outputs;
        outputs.chunks.push_back(std::move(chunk));
        send(messages::Door::kData, peer, encode(outputs));
    }

  private:
    void run() {
        for (bool is_last = false; !is_last;) {
            is_last = is_stopping_;
            bus::Poller poller;
            for (bus::Socket& socket : sockets_) poller.add(socket);
            poller.add_fd(wake_fd_);
            poller.wait(Clock::now() + std::chrono::seconds(is_last ? 0 : 10));
            eventfd_t count = 0;
            ::eventfd_read(wake_fd_, &count);
            for (std::size_t i = 0; i < sockets_.size(); ++i) {
                while (auto received = sockets_[i].receive()) {
                    if (received->frames.type == messages::Hello::kType) {
                        greet(sockets_[i], received->peer);
                        continue;
                    }
                    Result<std::string> tree = take_tree(received->frames);
                    CHECK(tree.has_value());
                    const MutexLock lock(mutex_);
                    received_.push_back(
                        {static_cast<messages::Door>(i),
                         received->peer,
                         received->frames,
                         *std::move(tree)}
                    );
                    arrived_.notify_all();
                }
            }
            std::deque<DoorMessage> to_send;
            {
                const MutexLock lock(mutex_);
                to_send.swap(to_send_);
            }
            for (const DoorMessage& message : to_send) {
                [[maybe_unused]] const bus::Sent sent =
                    sockets_[static_cast<std::size_t>(message.door)].send(
                        message.frames, message.peer
                    );
            }
        }
        sockets_.clear();
    }
    void greet(bus::Socket& socket, const std::string& peer) {
        if (greeting_error_) {
            messages::ErrorReply error;
            error.error = *greeting_error_;
            if (greeting_error_->code == ErrorCode::kUnavailable) greeting_error_.reset();
            // This client may be gone already, after a refusal from the other door.
            CHECK(socket.send(encode(error), peer) != bus::Sent::kFull);
            return;
        }
        messages::HelloReply reply;
        reply.protocol = messages::kDoorProtocolVersion;
        reply.model = "fake";
        reply.vocab_size = 100;
        messages::Frames frames = encode(reply);
        add_tree(frames, tree());
        CHECK(socket.send(frames, peer) == bus::Sent::kSent);
    }

    inline static std::atomic<int> next_tree{1};

    std::string tree_ GUARDED_BY(mutex_);
    std::string tree_of_last_ GUARDED_BY(mutex_){};
    std::optional<Error> greeting_error_;  // unavailable: for the first greeting only
    int wake_fd_;
    zmq::context_t context_{1};
    std::vector<bus::Socket> sockets_{};
    std::atomic<bool> is_stopping_{false};
    Mutex mutex_;
    Condition arrived_;
    std::deque<DoorMessage> received_ GUARDED_BY(mutex_){};
    std::deque<DoorMessage> to_send_ GUARDED_BY(mutex_){};
    std::thread thread_;
};

}  // namespace pitstop
