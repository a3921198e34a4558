// The sockets and the memory of a push, with the worker's end played here.
#include "client/push_sockets.h"
#include "client/shared_buffer.h"
#include "messages/codec.h"

#include <gtest/gtest.h>
#include <zmq.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace pitstop {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
const PushSockets::IsOver kNever = [] { return std::optional<Error>(); };

// Plays a worker with its REP socket.
class Worker {
  public:
    explicit Worker(const std::string& endpoint) {
        socket_.set(zmq::sockopt::linger, 0);
        socket_.set(zmq::sockopt::rcvtimeo, 20'000);
        socket_.connect(endpoint);
    }
    // The bucket that the worker is asked to read.
    std::int64_t take() {
        zmq::message_t type, body;
        if (!socket_.recv(type) || !socket_.recv(body)) return -1;
        const auto bucket = decode<messages::PushBucket>(
            {type.to_string(), body.to_string()}, messages::UnknownFields::kIgnore
        );
        return bucket ? bucket->bucket : -1;
    }
    void answer(const messages::PushDone& done) {
        const messages::Frames frames = encode(done);
        socket_.send(zmq::buffer(frames.type), zmq::send_flags::sndmore);
        socket_.send(zmq::buffer(frames.body), zmq::send_flags::none);
    }

  private:
    zmq::context_t context_{1};
    zmq::socket_t socket_{context_, zmq::socket_type::rep};
};

TEST(PushSockets, BucketsAreUnderWayBeforeTheFirstIsAnswered) {
    Result<PushSockets> sockets = PushSockets::bind({"a", "b"});
    ASSERT_TRUE(sockets);
    for (std::int64_t bucket = 0; bucket < 3; ++bucket)
        sockets->send_all(encode(messages::PushBucket{.bucket = bucket}));
    Worker quick(sockets->handles().at("a"));
    Worker slow(sockets->handles().at("b"));
    for (std::int64_t bucket = 0; bucket < 3; ++bucket) {
        // A worker gets the bucket once it has connected, and receive_done() waits for that.
        std::thread workers([&] {
            EXPECT_EQ(quick.take(), bucket);
            quick.answer({});
            EXPECT_EQ(slow.take(), bucket);
            slow.answer({});
        });
        EXPECT_TRUE(sockets->receive_done(kPatience, kNever)) << bucket;
        workers.join();
    }
}

TEST(PushSockets, MessagesForAWorkerAreSentOnceItHasCome) {
    Result<PushSockets> sockets = PushSockets::bind({"a"});
    ASSERT_TRUE(sockets);
    sockets->send_all(encode(messages::PushBucket{.bucket = 7}));  // no worker is connected
    std::atomic<std::int64_t> heard{-1};
    std::thread thread([&heard, endpoint = sockets->handles().at("a")] {
        heard = Worker(endpoint).take();
    });
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (heard < 0 && std::chrono::steady_clock::now() < deadline) {
        sockets->flush();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    thread.join();
    EXPECT_EQ(heard, 7);
}

TEST(PushSockets, ALayoutWhosePiecesLieElsewhereIsRefused) {
    const messages::ShardPiece good{.num_rows = 4, .num_cols = 8, .offset = 64, .row_stride = 16};
    messages::PushLayout layout;
    layout.shard_bytes = 128;
    std::string dtype;
    const auto decoded = [&layout, &dtype](const messages::ShardPiece& piece) {
        layout.tensors = {{.name = "w", .shape = {2, 2, 8}, .pieces = {piece}, .dtype = dtype}};
        return decode<messages::PushLayout>(encode(layout), messages::UnknownFields::kRefuse);
    };
    EXPECT_TRUE(decoded(good));
    constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
    const auto changed = [&good](std::int64_t messages::ShardPiece::*field, std::int64_t value) {
        messages::ShardPiece piece = good;
        piece.*field = value;
        return piece;
    };
    for (const messages::ShardPiece& bad :
         {changed(&messages::ShardPiece::row_begin, 1),
          changed(&messages::ShardPiece::row_begin, -1),
          changed(&messages::ShardPiece::num_rows, kHuge),
          changed(&messages::ShardPiece::col_begin, 1),
          changed(&messages::ShardPiece::num_cols, -1),
          changed(&messages::ShardPiece::offset, 65),
          changed(&messages::ShardPiece::offset, -1),
          changed(&messages::ShardPiece::row_stride, 17),
          changed(&messages::ShardPiece::row_stride, kHuge)}) {
        const auto refused = decoded(bad);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    }
    // A 4-byte dtype needs twice the memory; the size of an unknown dtype is unknown.
    dtype = "BF16";
    EXPECT_TRUE(decoded(good));
    dtype = "F32";
    EXPECT_FALSE(decoded(good));
    EXPECT_TRUE(decoded(changed(&messages::ShardPiece::num_cols, 4)));
    dtype = "F4";
    EXPECT_FALSE(decoded(good));
}

TEST(PushSockets, ARefusalIsTheAnswerToItsOwnBucket) {
    Result<PushSockets> sockets = PushSockets::bind({"a"});
    ASSERT_TRUE(sockets);
    for (std::int64_t bucket = 0; bucket < 2; ++bucket)
        sockets->send_all(encode(messages::PushBucket{.bucket = bucket}));
    std::thread thread([endpoint = sockets->handles().at("a")] {
        Worker worker(endpoint);
        EXPECT_EQ(worker.take(), 0);
        worker.answer({});
        EXPECT_EQ(worker.take(), 1);
        worker.answer({.verdict = Error{ErrorCode::kInvalidArgument, "bucket 1"}});
        // The tree sends nothing more; the connection must stay open until the tree has read the
        // answer.
        EXPECT_EQ(worker.take(), 2);
    });
    EXPECT_TRUE(sockets->receive_done(kPatience, kNever));
    const Result<> refused = sockets->receive_done(kPatience, kNever);
    sockets->send_all(encode(messages::PushBucket{.bucket = 2}));
    thread.join();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message, "a: bucket 1");
}

std::vector<std::byte> read_back(const SharedBuffer& buffer) {
    const messages::SharedMemory memory = buffer.describe();
    std::vector<std::byte> bytes(static_cast<std::size_t>(memory.bytes));
    EXPECT_EQ(::pread(static_cast<int>(memory.fd), bytes.data(), bytes.size(), 0), memory.bytes);
    return bytes;
}

TEST(SharedBuffer, WrittenBytesAreThereAndTheOthersAreZero) {
    constexpr std::int64_t kBytes = 3 * 4096 + 17;
    Result<SharedBuffer> buffer = SharedBuffer::make(kBytes, SharedBuffer::Access::kWritten);
    ASSERT_TRUE(buffer);
    std::vector<std::byte> expected(kBytes, std::byte{0});
    struct Part {
        std::int64_t at = 0;
        std::size_t size = 0;
    };
    for (const Part part : {Part{4090, 20}, Part{0, 1}, Part{kBytes - 5, 5}, Part{7, 0}}) {
        const std::vector<std::byte> bytes(part.size, std::byte{0xa5});
        ASSERT_TRUE(buffer->write(part.at, bytes));
        std::ranges::copy(bytes, expected.begin() + part.at);
    }
    ASSERT_TRUE(buffer->seal());
    EXPECT_EQ(read_back(*buffer), expected);
    EXPECT_FALSE(buffer->write(0, std::vector<std::byte>(1)));  // sealed
}

TEST(SharedBuffer, ASourceThatWasCutShortIsAnErrorAndNoSignal) {
    const int fd = ::memfd_create("source", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(fd, 8192), 0);
    void* source = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(source, MAP_FAILED);
    ASSERT_EQ(::ftruncate(fd, 0), 0);
    Result<SharedBuffer> buffer = SharedBuffer::make(8192, SharedBuffer::Access::kWritten);
    ASSERT_TRUE(buffer);
    const Result<> written = buffer->write(0, {static_cast<const std::byte*>(source), 8192});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, ErrorCode::kDataLoss);
    ::munmap(source, 8192);
    ::close(fd);
}

}  // namespace
}  // namespace pitstop
