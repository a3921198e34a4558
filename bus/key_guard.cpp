#include "bus/key_guard.h"

#include "base/log.h"

#include <array>
#include <utility>

namespace pitstop::bus {
namespace {

constexpr std::size_t kKeyBytes = 32;

std::string to_z85(const std::string& key) {
    std::array<char, 41> text{};
    CHECK(key.size() == kKeyBytes);
    static_cast<void>(
        ::zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(key.data()), key.size())
    );
    return text.data();
}

}  // namespace

Result<KeyGuard> KeyGuard::open(zmq::context_t& context) {
    RETURN_IF_ERROR(check_curve());
    try {
        zmq::socket_t socket(context, zmq::socket_type::rep);
        socket.set(zmq::sockopt::linger, 0);
        socket.bind("inproc://zeromq.zap.01");
        return KeyGuard(std::move(socket));
    } catch (const zmq::error_t& error) {
        return make_error(
            ErrorCode::kInternal,
            "cannot bind the socket that decides about keys (ZAP): {}",
            error.what()
        );
    }
}

void KeyGuard::allow(std::string domain, AllowedKeys keys) {
    doors_.insert_or_assign(std::move(domain), Door{std::move(keys)});
}

void KeyGuard::answer_all() {
    for (int n = 0; n < kQuestionsPerTurnMax; ++n) {
        std::vector<std::string> question;
        zmq::message_t part;
        try {
            do {
                if (!socket_.recv(part, zmq::recv_flags::dontwait)) return;
                question.push_back(part.to_string());
            } while (part.more());
            answer(question);
        } catch (const zmq::error_t& error) {
            if (error.num() != EINTR) return;  // the context is ending
        }
    }
}

// Frames of the question: version, request id, domain, address, identity, mechanism, credentials.
void KeyGuard::answer(const std::vector<std::string>& question) {
    const auto frame = [&](std::size_t i) { return i < question.size() ? question[i] : ""; };
    const bool is_curve = question.size() == 7 && frame(0) == "1.0" && frame(5) == "CURVE" &&
                          frame(6).size() == kKeyBytes;
    const auto door = doors_.find(frame(2));
    std::string key;
    bool is_allowed = false;
    if (is_curve && door != doors_.end()) {
        key = to_z85(frame(6));
        const std::optional<std::string> name = door->second.keys.find(key);
        is_allowed = name.has_value();
        if (is_allowed) {
            spdlog::info("'{}' from {} is admitted at the {} door", *name, frame(3), door->first);
        } else {
            ++door->second.num_refused;
            spdlog::info("a key from {} is refused at the {} door: {}", frame(3), door->first, key);
        }
    }
    const std::array<std::string, 6> reply{
        "1.0",
        frame(1),
        is_allowed ? "200" : "400",
        is_allowed ? "OK" : "this key is not allowed",
        is_allowed ? key : "",  // becomes Received::key of each message
        ""};
    for (std::size_t i = 0; i < reply.size(); ++i) {
        const auto more = i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
        static_cast<void>(socket_.send(zmq::buffer(reply[i]), more | zmq::send_flags::dontwait));
    }
}

bool KeyGuard::is_allowed(TimePoint now, std::string_view domain, std::string_view key) {
    const auto door = doors_.find(domain);
    return door != doors_.end() && door->second.keys.has(now, key);
}

std::int64_t KeyGuard::num_refused(std::string_view domain) const {
    const auto door = doors_.find(domain);
    return door == doors_.end() ? 0 : door->second.num_refused;
}

}  // namespace pitstop::bus
