// pitstop_tokenize prints what a tokenizer makes of texts and ids, one JSON object per line.
//
//   {"text": "..."}  ->  {"ids": [...], "text": "decoded again"}
//   {"ids": [...]}   ->  {"ids": [...], "text": "decoded"}
//
// Any other line gets {"error": {"code": ..., "message": ...}}. Later lines still get their
// answers; then the exit code is 1.
#include "base/flags.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <iostream>
#include <istream>
#include <string>

namespace pitstop::text {
namespace {

using nlohmann::ordered_json;
using enum ErrorCode;

constexpr std::size_t kLineBytesMax = std::size_t{64} << 20;

struct Modes {
    AddSpecial add_special = AddSpecial::kNo;
    SkipSpecial skip_special = SkipSpecial::kNo;
};

Result<std::vector<TokenId>> read_ids(const Tokenizer& tokenizer, const ordered_json& given) {
    if (!given.is_array()) return make_error(kInvalidArgument, "\"ids\" is not an array");
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < given.size(); ++i) {
        const ordered_json& value = given[i];
        const bool is_id =
            value.is_number_unsigned() &&
            value.get<std::uint64_t>() < static_cast<std::uint64_t>(tokenizer.vocab_size());
        if (!is_id || !tokenizer.id_to_token(TokenId{value.get<std::int32_t>()})) {
            return make_error(
                kInvalidArgument,
                "ids[{}] is {}; the tokenizer has ids 0 to {}",
                i,
                value.is_primitive() ? value.dump().substr(0, 40) : value.type_name(),
                tokenizer.vocab_size() - 1
            );
        }
        ids.push_back(TokenId{value.get<std::int32_t>()});
    }
    return ids;
}

Result<ordered_json> answer(const Tokenizer& tokenizer, const Modes& modes, std::string_view line) {
    if (const auto bad = find_invalid_utf8(line)) {
        return make_error(kInvalidArgument, "the line is not valid UTF-8 at byte {}", *bad);
    }
    ordered_json request;
    try {  // only the parser's exceptions tell where and why it failed
        request = ordered_json::parse(line);
    } catch (const ordered_json::exception& error) {
        // The message is "[json.exception.parse_error.101] parse error at line 1, column 5: ...".
        // In it, line 1 is this line.
        const std::string_view what = error.what();
        return make_error(kMalformed, "not a line of JSON: {}", what.substr(what.find("] ") + 2));
    }
    if (!request.is_object()) return make_error(kInvalidArgument, "the line is not a JSON object");
    for (const auto& [key, value] : request.items()) {
        if (key != "text" && key != "ids") {
            return make_error(
                kInvalidArgument, "unknown key '{}'; a line has \"text\" or \"ids\"", key
            );
        }
    }
    if (request.size() != 1) {
        return make_error(
            kInvalidArgument, "a line has either \"text\" or \"ids\", not both or neither"
        );
    }
    std::vector<TokenId> ids;
    if (request.contains("text")) {
        if (!request["text"].is_string())
            return make_error(kInvalidArgument, "\"text\" is not a string");
        const auto& text = request["text"].get_ref<const std::string&>();
        ASSIGN_OR_RETURN(ids, tokenizer.encode(text, modes.add_special));
    } else {
        ASSIGN_OR_RETURN(ids, read_ids(tokenizer, request["ids"]));
    }
    ASSIGN_OR_RETURN(std::string text, tokenizer.decode(ids, modes.skip_special));
    ordered_json reply;
    reply["ids"] = ordered_json::array();
    for (const TokenId id : ids) reply["ids"].push_back(raw(id));
    reply["text"] = std::move(text);
    return reply;
}

// Reads a line of any length, and keeps at most the limit.
enum class LineState { kLine, kTooLong, kEnd };
LineState read_line(std::istream& in, std::string& line) {
    line.clear();
    std::streambuf& buffer = *in.rdbuf();
    bool is_too_long = false;
    for (int c = buffer.sbumpc();; c = buffer.sbumpc()) {
        const bool is_end = c == std::char_traits<char>::eof();
        if (is_end && line.empty()) return LineState::kEnd;
        if (is_end || c == '\n') return is_too_long ? LineState::kTooLong : LineState::kLine;
        if (line.size() == kLineBytesMax) {
            is_too_long = true;
        } else {
            line.push_back(static_cast<char>(c));
        }
    }
}

int run(int argc, char** argv) {
    FlagSet flags(
        "pitstop_tokenize", "Reads JSON lines {\"text\": ...} or {\"ids\": [...]}, writes both."
    );
    std::string path;
    bool add_special = false;
    bool skip_special = false;
    flags.add("tokenizer", &path, "a tokenizer.json, or the directory that has it");
    flags.add(
        "add-special-tokens",
        &add_special,
        "add the model's special tokens around each encoded text"
    );
    flags.add("skip-special-tokens", &skip_special, "leave special tokens out of decoded text");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (path.empty() || !flags.positional().empty()) {
        return flags.fail(
            make_error(kInvalidArgument, "accepted is --tokenizer DIR and no other argument")
        );
    }
    const auto tokenizer = Tokenizer::load(path);
    if (!tokenizer) {
        std::fprintf(stderr, "pitstop_tokenize: %s\n", tokenizer.error().message.c_str());
        return 2;
    }
    for (const std::string& warning : (*tokenizer)->warnings()) {
        std::fprintf(stderr, "pitstop_tokenize: %s\n", warning.c_str());
    }
    const Modes modes{
        .add_special = add_special ? AddSpecial::kYes : AddSpecial::kNo,
        .skip_special = skip_special ? SkipSpecial::kYes : SkipSpecial::kNo,
    };
    std::ios::sync_with_stdio(false);
    bool all_good = true;
    std::string line;
    for (LineState state; (state = read_line(std::cin, line)) != LineState::kEnd;) {
        Result<ordered_json> reply =
            state == LineState::kTooLong
                ? make_error(kTooLarge, "the line is longer than {} bytes", kLineBytesMax)
                : answer(**tokenizer, modes, line);
        if (!reply) {
            all_good = false;
            ordered_json error;
            error["error"]["code"] = std::string(name_of(reply.error().code));
            error["error"]["message"] = reply.error().message;
            reply = std::move(error);
        }
        // A message may quote bytes that are not UTF-8, but the output must be UTF-8.
        std::cout << reply->dump(-1, ' ', false, ordered_json::error_handler_t::replace)
                  << std::endl;
        if (!std::cout) return 1;  // the reader closed the pipe
    }
    return all_good ? 0 : 1;
}

}  // namespace
}  // namespace pitstop::text

int main(int argc, char** argv) {
    try {
        return pitstop::text::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pitstop_tokenize: %s\n", error.what());
        return 2;
    }
}
