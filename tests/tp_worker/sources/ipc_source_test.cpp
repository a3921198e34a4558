// checkpoint-engine's and pitstop's own senders, for an update that ended before their first
// message arrived: without an answer from the worker they would wait for ever.
#include "base/isa.h"
#include "messages/codec.h"
#include "messages/push.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/update/updater.h"

#include <gtest/gtest.h>
#include <zmq.hpp>

#include <poll.h>

namespace pitstop::tp_worker {
namespace {

constexpr int kPatienceMs = 10'000;
constexpr std::string_view kNone = "\x80\x04N.";  // pickle.dumps(None)

class IpcSourceTest : public testing::Test {
  protected:
    IpcSourceTest() {
        ReplicaOptions options;
        options.engine.model_dir = model_dir("stories");
        options.engine.isa = best_isa();
        options.engine.max_total_tokens = 64;
        auto replica = TestReplica::make(options);
        if (!replica) throw std::runtime_error(replica.error().message);
        replica_ = *std::move(replica);
        updater_.emplace(replica_->engine(0), pace_, fault_point_);
        // A REQ socket, as the real ones have.
        sender_.set(zmq::sockopt::linger, 0);
        sender_.set(zmq::sockopt::sndtimeo, kPatienceMs);
        sender_.set(zmq::sockopt::rcvtimeo, kPatienceMs);
        sender_.bind("ipc://@pitstop-ipc-source-test-*");
        order_.update = messages::UpdateId{1};
        order_.spec.source.kind = messages::SourceKind::kIpc;
        order_.spec.source.handles = {{"CPU-0-0", sender_.get(zmq::sockopt::last_endpoint)}};
    }

    template <class Order>
    void give(const Order& order) {
        const auto now = updater_->handle_order(encode(order));
        ASSERT_TRUE(now) << now.error().message;
        EXPECT_TRUE(now->empty());
    }
    void say(std::initializer_list<std::string_view> frames) {
        std::size_t left = frames.size();
        for (const std::string_view frame : frames) {
            const auto flags = --left > 0 ? zmq::send_flags::sndmore : zmq::send_flags::none;
            ASSERT_TRUE(sender_.send(zmq::buffer(frame), flags)) << "no worker connects";
        }
    }
    // The last frame of the answer.
    std::string receive() {
        zmq::message_t frame;
        do {
            if (!sender_.recv(frame)) return "no answer";
        } while (frame.more());
        return frame.to_string();
    }
    template <class Answer>
    std::optional<Answer> answer() {
        while (true) {
            pollfd item{updater_->fd(), POLLIN, 0};
            if (::poll(&item, 1, kPatienceMs) != 1) return std::nullopt;
            for (const messages::Frames& one : updater_->take_answers()) {
                if (one.type == Answer::kType)
                    return *decode<Answer>(one, messages::UnknownFields::kRefuse);
            }
        }
    }

    std::unique_ptr<TestReplica> replica_{};
    Pace pace_{1.0};
    FaultPoint fault_point_{"test"};
    std::optional<Updater> updater_{};
    zmq::context_t context_{};
    zmq::socket_t sender_{context_, zmq::socket_type::req};
    messages::WorkerStage order_{};
};

TEST_F(IpcSourceTest, ASenderIsToldOfADropThatCameBeforeIt) {
    give(order_);
    give(messages::WorkerDrop{.update = order_.update});
    say({"whatever it is, it is not read"});
    EXPECT_EQ(receive(), "the stage was dropped");
    say({kNone});  // the sender ends with two None
    EXPECT_EQ(receive(), "");
    say({kNone});
    EXPECT_EQ(receive(), "");
    EXPECT_TRUE(answer<messages::WorkerDropped>());
}

TEST_F(IpcSourceTest, APusherIsToldOfADropThatCameBeforeIt) {
    give(order_);
    give(messages::WorkerDrop{.update = order_.update});
    const messages::Frames open = encode(messages::PushOpen{});
    say({open.type, open.body});
    const messages::Frames heard{
        .type = std::string(messages::PushLayout::kType), .body = receive()};
    const auto layout = decode<messages::PushLayout>(heard, messages::UnknownFields::kRefuse);
    ASSERT_TRUE(layout) << heard.body;
    EXPECT_EQ(layout->verdict.code, ErrorCode::kAborted);
    EXPECT_TRUE(answer<messages::WorkerDropped>());
}

TEST_F(IpcSourceTest, P2_AWorkerOnACpuRefusesWhatIsInAGpusMemory) {
    give(order_);
    const messages::Frames open = encode(messages::PushOpen{});
    say({open.type, open.body});
    const messages::Frames heard{
        .type = std::string(messages::PushLayout::kType), .body = receive()};
    ASSERT_TRUE(decode<messages::PushLayout>(heard, messages::UnknownFields::kRefuse));
    messages::PushBucket bucket;
    bucket.tensors = {
        {.name = "model.norm.weight", .dtype = "BF16", .shape = {128}, .allocation = 0}};
    bucket.allocations = {{.handle = std::string(128, '0'), .device_uuid = "GPU-0"}};
    const messages::Frames lent = encode(bucket);
    say({lent.type, lent.body});
    const messages::Frames said{.type = std::string(messages::PushDone::kType), .body = receive()};
    const auto done = decode<messages::PushDone>(said, messages::UnknownFields::kRefuse);
    ASSERT_TRUE(done) << said.body;
    EXPECT_EQ(done->verdict.code, ErrorCode::kUnsupported);
    EXPECT_TRUE(done->verdict.message.find("computes on the CPU") != std::string::npos)
        << done->verdict.message;
    const auto refused = answer<messages::WorkerStaged>();
    ASSERT_TRUE(refused);
    EXPECT_FALSE(refused->outcome.ok);
}

TEST_F(IpcSourceTest, P5_AFarewellEndsWithTheProcess) {
    give(order_);
    give(messages::WorkerDrop{.update = order_.update});
    say({"whatever it is, it is not read"});
    EXPECT_EQ(receive(), "the stage was dropped");
    updater_.reset();  // before the sender has sent its two None
}

TEST_F(IpcSourceTest, ASenderIsToldOfAManifestThatIsNotTheModels) {
    order_.spec.manifest = {{.name = "no.such.tensor"}};
    give(order_);
    say({"whatever it is, it is not read"});
    EXPECT_EQ(receive(), "'no.such.tensor' is declared and is no tensor of this model");
    say({kNone});
    EXPECT_EQ(receive(), "");
    say({kNone});
    EXPECT_EQ(receive(), "");
    const auto vote = answer<messages::WorkerStaged>();
    ASSERT_TRUE(vote);
    EXPECT_FALSE(vote->outcome.ok);
}

}  // namespace
}  // namespace pitstop::tp_worker
