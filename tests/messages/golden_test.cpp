// The bytes on the wire, compared with independent sources: bytes written by hand from the msgpack
// specification, and bytes made by Python's msgpack. Python encodes some messages with chosen
// values (golden.py writes tests/data/messages/golden.txt), and every message with every field
// (every_golden.py, every.txt).
#include "messages/all_messages.h"
#include "tests/messages/every_message.h"
#include "tests/source_dir.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace pitstop::messages {
namespace {

using namespace std::string_literals;

TEST(Golden, CancelByHand) {
    const Cancel message{.rids = {"a", "Grüße"}};
    const std::string bytes =
        "\x81"  // a map of 1
        "\xa4"
        "rids"  // a string of 4
        "\x92"  // an array of 2
        "\xa1"
        "a"  // a string of 1
        "\xa7"
        "Gr\xc3\xbc\xc3\x9f"
        "e";  // a string of 7 bytes, UTF-8
    const Frames frames = encode(message);
    EXPECT_EQ(frames.type, "cancel");
    EXPECT_EQ(frames.body, bytes);
    EXPECT_TRUE(frames.raw.empty());
}

TEST(Golden, StatusByHand) {
    const Status message{.call = CallId{0x1'0000'0001}, .timeout_ms = -2};
    const std::string bytes =
        "\x82"
        "\xa4"
        "call"
        "\xcf\x00\x00\x00\x01\x00\x00\x00\x01"  // uint64, big-endian
        "\xaa"
        "timeout_ms"
        "\xfe"s;  // negative fixint -2
    EXPECT_EQ(encode(message).body, bytes);
}

TEST(Golden, RawFramesByHand) {
    StepResult message;
    message.step = StepId{5};
    message.sampled.values = {TokenId{1}, TokenId{0}, TokenId{0x01020304}};
    message.logprobs.values = {-0.5f};
    const Frames frames = encode(message);
    ASSERT_EQ(frames.raw.size(), 2U);
    EXPECT_EQ(frames.raw[0], "\x01\x00\x00\x00\x00\x00\x00\x00\x04\x03\x02\x01"s);  // little-endian
    EXPECT_EQ(frames.raw[1], "\x00\x00\x00\xbf"s);  // IEEE 754 binary32 of -0.5
    EXPECT_NE(
        frames.body.find("\xa7"
                         "sampled"
                         "\x00"s),
        std::string::npos
    ) << "raw frame 0";
    EXPECT_NE(
        frames.body.find("\xa8"
                         "logprobs"
                         "\x01"s),
        std::string::npos
    ) << "raw frame 1";
}

TEST(Golden, EmptyFieldsAreLeftOut) {
    Outputs message;
    message.chunks.emplace_back();
    const std::string bytes =
        "\x81"
        "\xa6"
        "chunks"
        "\x91"
        "\x81"
        "\xa3"
        "key"
        "\x00"s;
    EXPECT_EQ(encode(message).body, bytes);
}

// ---- made by Python's msgpack ----

struct Golden {
    std::string body{};
    std::vector<std::string> raw{};
};

std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
}

// Lines: type, body in hex, raw frames in hex.
std::map<std::string, Golden> read_golden(const std::string& name) {
    std::map<std::string, Golden> golden;
    std::ifstream file(source_dir() + "/tests/data/messages/" + name);
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream words(line);
        std::string type;
        std::string hex;
        words >> type >> hex;
        Golden& entry = golden[type];
        entry.body = from_hex(hex);
        while (words >> hex) entry.raw.push_back(from_hex(hex));
    }
    return golden;
}

// Expects that our bytes are Python's, and that Python's bytes decode to our message.
template <class Message>
void expect_golden(const Message& message) {
    static const std::map<std::string, Golden> all = read_golden("golden.txt");
    const auto golden = all.find(std::string(Message::kType));
    ASSERT_NE(golden, all.end()) << Message::kType << " is not in golden.txt";
    const Frames frames = encode(message);
    EXPECT_EQ(frames.body, golden->second.body) << Message::kType;
    EXPECT_EQ(frames.raw, golden->second.raw) << Message::kType;
    const Result<Message> decoded = decode<Message>(
        {std::string(Message::kType), golden->second.body, golden->second.raw},
        UnknownFields::kRefuse
    );
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(encode(*decoded).body, golden->second.body);
}

TEST(Golden, HelloIsPythons) { expect_golden(Hello{.protocol = 3, .name = "trainer"}); }

TEST(Golden, ErrorIsPythons) {
    expect_golden(ErrorReply{
        .rid = "r-1",
        .call = CallId{0xffff'ffff'ffff'ffff},
        .error = {ErrorCode::kTooLarge, "a message of more than 16777216 bytes"}});
}

TEST(Golden, GenerateIsPythons) {
    Generate message;
    message.rid = "story/1";
    message.input_ids = {TokenId{0}, TokenId{127}, TokenId{128}, TokenId{65536}, TokenId{-33}};
    message.sampling.max_new_tokens = 300;
    message.sampling.temperature = 0.7;
    message.sampling.logit_bias = {{5, -100.0}, {2047, 0.25}};
    message.sampling.seed = 0x8000'0000'0000'0000;
    message.sampling.stop = {"\n\n", "終"};
    message.sampling.stop_token_ids = {TokenId{2}};
    message.logprobs.enabled = true;
    message.logprobs.mode = LogprobsMode::kTruncated;
    message.logprobs.prompt_start = 0;
    message.logprobs.top = 5;
    message.stream = false;
    message.priority = -7;
    message.kv_tolerance = KvTolerance::kMaxLag;
    message.kv_max_lag = 2;
    message.replica = 1;
    expect_golden(message);
}

TEST(Golden, OutputsIsPythons) {
    OutputChunk chunk;
    chunk.rid = std::string(40, 'r');  // past a fixstr
    chunk.text = " Lily";
    chunk.tokens = {TokenId{605}};
    chunk.logprobs = {-0.125f};
    chunk.ranks = {300};
    chunk.top_ids = {TokenId{605}, TokenId{13}};
    chunk.top_logprobs = {-0.125f, -2.5f};
    chunk.spans = {
        {.epoch = Epoch{3},
         .label = "step 12",
         .digest = "00112233445566778899aabbccddeeff",
         .tokens = 1,
         .kv_min_epoch = Epoch{2},
         .kv_max_epoch = Epoch{3}}};
    chunk.counts = RequestCounts{
        .prompt_tokens = 4,
        .cached_tokens = 0,
        .completion_tokens = 64,
        .retractions = 1,
        .replica = 1,
        .queue_us = 70'000,
        .prefill_us = 200};
    chunk.finish = Finish{.reason = FinishReason::kStop, .matched_token = TokenId{2}};
    expect_golden(Outputs{.chunks = {chunk}});
}

TEST(Golden, StepPlanIsPythons) {
    StepPlan plan;
    plan.step = StepId{70'000};
    plan.epoch = Epoch{1};
    plan.rows = {
        {.slot = SlotId{0},
         .begin = 0,
         .num_new = 3,
         .num_pages = 1,
         .num_scored = 2,
         .num_routed = 1,
         .num_brought = 2,
         .save_to = CheckpointId{300},
         .save_at = 2},
        {.slot = SlotId{1},
         .begin = 17,
         .num_new = 1,
         .num_pages = 2,
         .output_index = 0,
         .takes_sampled = true,
         .state_from = CheckpointId{1}},
        {.slot = SlotId{2},
         .begin = 5,
         .num_new = 2,
         .num_pages = 1,
         .output_index = 4,
         .num_drafted = 1}};
    plan.tokens.values = {
        TokenId{740}, TokenId{543}, TokenId{258}, TokenId{0}, TokenId{7}, TokenId{8}};
    plan.pages.values = {PageId{9}, PageId{4}, PageId{5}, PageId{6}};
    plan.targets.values = {TokenId{543}, TokenId{258}};
    plan.routes.values = {3, 0, 7, 1};
    expect_golden(plan);
}

TEST(Golden, SetWeightLabelIsPythons) {
    expect_golden(SetWeightLabel{.call = CallId{9}, .label = "pas 12 – été", .abort_all = true});
}

TEST(Golden, MemoryIsPythons) {
    expect_golden(ReleaseMemory{
        .call = CallId{3},
        .timeout_ms = 2500,
        .tags = {MemoryTag::kKvCache, MemoryTag::kWeights},
        .keep_weights = true});
    MemoryPart part;
    part.replica = ReplicaId{1};
    part.tags = {
        {.tag = MemoryTag::kWeights,
         .state = MemoryState::kReleased,
         .host_bytes = std::int64_t{1} << 33,
         .freed_bytes = (std::int64_t{1} << 33) + 4096}};
    expect_golden(MemoryReply{.call = CallId{3}, .ok = true, .parts = {part}});
}

TEST(Golden, PushIsPythons) {
    expect_golden(PushOpen{.memory = {.pid = 4711, .fd = 23, .bytes = std::int64_t{1} << 33}});
    PushLayout layout;
    layout.rank = Rank{1};
    layout.tp = 2;
    layout.shard_bytes = std::int64_t{1} << 32;
    const ShardPiece piece{
        .row_begin = 0,
        .num_rows = 1,
        .col_begin = 512,
        .num_cols = 512,
        .offset = 4096,
        .row_stride = 1024};
    layout.tensors = {{.name = "model.norm.weight", .shape = {1024}, .pieces = {piece}}};
    layout.takes_rows = true;
    expect_golden(layout);
    PushBucket bucket{.bucket = 3};
    bucket.tensors = {
        {.name = "lm_head.weight",
         .dtype = "F32",
         .shape = {151'936, 1024},
         .offset = 64,
         .row_begin = 4096,
         .num_rows = 512},
        {.name = "model.norm.weight",
         .dtype = "BF16",
         .shape = {1024},
         .offset = 512,
         .allocation = 0}};
    std::string handle;
    for (int i = 0; i < 8; ++i) handle += "0123456789abcdef";
    bucket.allocations = {{.handle = handle, .device_uuid = "GPU-0123"}};
    expect_golden(bucket);
    expect_golden(PushShard{.memory = {.pid = 4711, .fd = 24, .bytes = 4096}});
    expect_golden(PushEnd{.verdict = Error{ErrorCode::kDataLoss, "'a' was cut short"}});
    expect_golden(PushDone{});
}

TEST(Golden, UpdateBucketIsPythons) {
    UpdateBucket message;
    message.call = CallId{5};
    message.session = 7;
    message.source.kind = SourceKind::kIpc;
    message.source.handles = {{"CPU-0-0", "ipc://@a"}, {"CPU-0-1", "ipc://@b"}};
    message.source.stall_ms = 60'000;
    expect_golden(message);
}

TEST(Golden, ShutdownIsPythons) { expect_golden(Shutdown{.call = CallId{1}, .drain_s = 2.5}); }

// ---- every message, every field ----

const std::map<std::string, Golden>& every_golden() {
    static const std::map<std::string, Golden> all = read_golden("every.txt");
    return all;
}

using GoldenOfEvery = TestOfEveryMessage;
INSTANTIATE_TEST_SUITE_P(Every, GoldenOfEvery, testing::ValuesIn(every_message()), kTypeName);

TEST_P(GoldenOfEvery, IsPythons) {
    const std::string type(GetParam().type);
    const auto golden = every_golden().find(type);
    ASSERT_NE(golden, every_golden().end())
        << "not in every.txt: run tests/messages/every_golden.py";
    const auto& [body, raw] = golden->second;
    const Result<Frames> frames = GetParam().recoded({type, body, raw}, UnknownFields::kRefuse);
    ASSERT_TRUE(frames) << frames.error().message;
    EXPECT_EQ(frames->body, body);
    EXPECT_EQ(frames->raw, raw);
}

TEST(Golden, EveryTxtHasNoOtherMessages) {
    EXPECT_EQ(every_golden().size(), every_message().size());
}

}  // namespace
}  // namespace pitstop::messages
