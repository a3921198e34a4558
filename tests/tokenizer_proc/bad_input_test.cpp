// Bad input: each message is answered, and nothing else changes.
#include "tests/tokenizer_proc/doors_fixture.h"

#include <msgpack.hpp>

#include <cmath>
#include <limits>
#include <random>

namespace pitstop::tokenizer {
namespace {

class BadInput : public DoorsTest {
  protected:
    void SetUp() override {
        start();
        send("witness", prompt("w"));
        witness_ = next_request().key;
    }
    void TearDown() override {
        deliver({chunk(witness_, "fine", /*is_last=*/true)});
        EXPECT_EQ(next_to<messages::Outputs>("witness").chunks[0].text, "fine");
        send("p", prompt("still works"));
        next_request();
    }
    void expect_refused(const messages::Generate& message, const std::string& expected) {
        send("p", message);
        const messages::ErrorReply error = refusal("p");
        EXPECT_EQ(error.rid, "bad");
        EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
        EXPECT_NE(error.error.message.find(expected), std::string::npos) << error.error.message;
    }
    template <class Fill>
    static messages::Frames packed(std::uint32_t num_fields, Fill fill) {
        msgpack::sbuffer buffer;
        msgpack::packer<msgpack::sbuffer> packer(buffer);
        packer.pack_map(num_fields + 1);
        packer.pack(std::string("rid"));
        packer.pack(std::string("bad"));
        fill(packer);
        return {"generate", std::string(buffer.data(), buffer.size()), {}};
    }
    RequestKey witness_{};
};

TEST_F(BadInput, ParametersThatAreNegativeOrNoNumbers) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    for (const double temperature : {-1.0, kNaN, HUGE_VAL}) {
        messages::Generate message = prompt("bad");
        message.sampling.temperature = temperature;
        expect_refused(message, "temperature");
    }
    messages::Generate message = prompt("bad");
    message.sampling.top_p = kNaN;
    expect_refused(message, "top_p");
    message = prompt("bad");
    message.sampling.max_new_tokens = -1;
    expect_refused(message, "max_new_tokens");
    message = prompt("bad");
    message.sampling.logit_bias[3] = kNaN;
    expect_refused(message, "logit_bias");
}

TEST_F(BadInput, TokenIdsOutOfRange) {
    for (const std::int32_t id : {-1, static_cast<std::int32_t>(kVocabSize)}) {
        messages::Generate message = prompt("bad");
        message.text.reset();
        message.input_ids = {TokenId{1}, TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.stop_token_ids = {TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.logit_bias[id] = 1.0;
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.logprobs.enabled = true;
        message.logprobs.ids = {TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.allowed_token_ids = {TokenId{1}, TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.bad_tokens = {{TokenId{1}}, {TokenId{2}, TokenId{id}}};
        expect_refused(message, std::to_string(id));
    }
}

TEST_F(BadInput, BadWordsWithoutTextOrTooMany) {
    messages::Generate message = prompt("bad");
    message.sampling.bad_words = {"no", " \t"};
    expect_refused(message, "bad_words");
    message.sampling.bad_words.assign(messages::kBadWordsMax + 1, "no");
    expect_refused(message, "1025");
    message.sampling.bad_words = {std::string(messages::kBadWordBytesMax + 1, 'n')};
    expect_refused(message, "1025 bytes");
    message.sampling.bad_words.clear();
    message.sampling.bad_tokens = {{TokenId{1}}, {}};
    expect_refused(message, "empty sequence");
    message.sampling.bad_tokens.assign(messages::kBadSequencesMax, {TokenId{1}});
    message.sampling.bad_words = {"no"};  // one sequence more, once it is tokens
    expect_refused(message, "4097 sequences");
}

class BadInputOfALongContext : public BadInput {
  protected:
    BadInputOfALongContext() { context_len_ = 4 * kContextLen; }
};

// Asks for the logprobs of whole vocabularies, at one position more than a reply can hold.
TEST_F(BadInputOfALongContext, MoreLogprobsThanAReplyHolds) {
    messages::Generate message = prompt("bad");
    message.logprobs.enabled = true;
    message.logprobs.top = kVocabSize + 1;
    expect_refused(message, "2049");
    const auto refused = [&](std::int64_t num_prompt, std::int64_t num_output) {
        message = prompt("bad");
        message.text.reset();
        message.input_ids = std::vector<TokenId>(static_cast<std::size_t>(num_prompt), TokenId{1});
        message.sampling.max_new_tokens = num_output;
        message.logprobs = {.enabled = true, .prompt_start = 0, .top = kVocabSize};
        message.logprobs.ids.assign(messages::kLogprobIdsMax, TokenId{1});
        send("p", message);
        return refusal("p").error;
    };
    // A position takes (2 + 2 * 2048 + 1024) * 5 bytes, so a reply can hold 1310 of them.
    for (const auto& [num_prompt, num_output] : {std::pair{1311, 1}, std::pair{1, 1311}}) {
        const Error error = refused(num_prompt, num_output);
        EXPECT_EQ(error.code, ErrorCode::kTooLarge) << error.message;
        EXPECT_NE(error.message.find("1311"), std::string::npos) << error.message;
    }
}

TEST_F(BadInput, PromptsThatAreEmptyMissingOrTwo) {
    expect_refused(prompt("bad", ""), "empty");
    messages::Generate message = prompt("bad");
    message.input_ids = {TokenId{1}};
    expect_refused(message, "both");
    message.text.reset();
    message.input_ids->clear();
    // The wire leaves an empty array out, so the message has no prompt at all.
    expect_refused(message, "");
}

TEST_F(BadInput, PromptsThatDoNotFitTheContext) {
    messages::Generate message = prompt("bad");
    message.text.reset();
    message.input_ids = std::vector<TokenId>(kContextLen - 7, TokenId{1});
    expect_refused(message, "1024");  // with its 8 output tokens
    message.sampling.max_new_tokens = 7;
    send("p", message);
    next_request();
}

TEST_F(BadInput, AReplicaThatIsNotThere) {
    messages::Generate message = prompt("bad");
    message.replica = 1;
    expect_refused(message, "replica");
}

TEST_F(BadInput, UnknownFields) {
    from_client("p", packed(2, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(std::string("x"));
                    packer.pack(std::string("wing"));
                    packer.pack(1);
                }));
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.rid, "bad");
    EXPECT_NE(error.error.message.find("wing"), std::string::npos);
}

TEST_F(BadInput, WrongTypes) {
    from_client("p", packed(1, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(5);
                }));
    EXPECT_EQ(refusal("p").error.message, "generate: text: expected a string, got an integer");
}

TEST_F(BadInput, TextThatIsNotUtf8) {
    from_client("p", packed(1, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(std::string("ok\xff"));
                }));
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.rid, "bad");
    EXPECT_NE(error.error.message.find("UTF-8"), std::string::npos);
}

TEST_F(BadInput, BodiesCutAtEveryByte) {
    const messages::Frames whole = encode(prompt("bad"));
    for (std::size_t size = 0; size < whole.body.size(); ++size) {
        from_client("p", {whole.type, whole.body.substr(0, size), {}});
        EXPECT_EQ(refusal("p").error.code, ErrorCode::kMalformed) << size;
    }
}

TEST_F(BadInput, RandomBytesOfEveryTypeAtBothDoors) {
    std::mt19937 random(1);
    const std::vector<std::string> types{
        "generate",
        "cancel",
        "tokenize",
        "hello",
        "status",
        "pause_generation",
        "abort",
        "update_weights",
        "outputs",
        "text_batch",
        "step_plan",
        "",
        "\xff\xfe"};
    for (int i = 0; i < 20'000; ++i) {
        messages::Frames frames;
        frames.type = types[random() % types.size()];
        frames.body.resize(random() % 40);
        for (char& c : frames.body) c = static_cast<char>(random());
        const messages::Door door =
            random() % 2 == 0 ? messages::Door::kData : messages::Door::kAdmin;
        from_client("p", frames, door);
    }
    EXPECT_GT(to_client_[(std::pair{messages::Door::kData, std::string("p")})].size(), 9000u);
    to_client_.erase({messages::Door::kData, "p"});
}

TEST_F(BadInput, RandomBytesFromTheTree) {
    std::mt19937 random(2);
    const std::vector<std::string> types{
        "text_batch",
        "scheduler_hello",
        "replica_status",
        "pause_part",
        "update_part",
        "worker_tensor",
        "worker_digests",
        "generate",
        ""};
    for (int i = 0; i < 20'000; ++i) {
        messages::Frames frames;
        frames.type = types[random() % types.size()];
        frames.body.resize(random() % 40);
        for (char& c : frames.body) c = static_cast<char>(random());
        turn({.from_tree = {bus::Received{.frames = frames}}});
    }
}

TEST_F(BadInput, MessagesThatTheSocketRefused) {
    const Error refused{ErrorCode::kTooLarge, "more than 16777216 bytes"};
    turn({.from_clients = {{messages::Door::kData, bus::Received{.peer = "p", .refused = refused}}}}
    );
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kTooLarge);
}

TEST_F(BadInput, UnknownTypesAndTheOtherDoorsTypes) {
    from_client("p", {"genrate", "\x80", {}});
    const messages::ErrorReply unknown = refusal("p");
    EXPECT_EQ(unknown.error.code, ErrorCode::kUnknownMessage);
    EXPECT_NE(unknown.error.message.find("generate"), std::string::npos);
    messages::Status call;
    call.call = CallId{9};
    send("p", call);
    const messages::ErrorReply wrong_door = refusal("p");
    EXPECT_EQ(wrong_door.error.code, ErrorCode::kPermissionDenied);
    EXPECT_EQ(wrong_door.call, CallId{9});
    send("p", prompt("bad"), messages::Door::kAdmin);
    EXPECT_EQ(refusal("p", messages::Door::kAdmin).error.code, ErrorCode::kPermissionDenied);
}

TEST_F(BadInput, ASchedulersSecondHelloChangesNothing) {
    messages::SchedulerHello hello;
    hello.replica = ReplicaId{0};
    hello.vocab_size = 5;
    hello.context_len = hello.page_size = 1;
    from_tree(hello);
    messages::Hello greeting;
    greeting.protocol = messages::kDoorProtocolVersion;
    send("p", greeting);
    EXPECT_EQ(next_to<messages::HelloReply>("p").vocab_size, kVocabSize);
}

}  // namespace
}  // namespace pitstop::tokenizer
