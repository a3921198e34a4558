#include "bench/http_hold.h"

#include "base/time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace pitstop::bench {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 8> kAnimals{
    "cat", "dog", "bird", "frog", "bear", "fish", "mouse", "rabbit"};
constexpr std::array<std::string_view, 8> kPlaces{
    "park", "house", "forest", "garden", "school", "lake", "farm", "town"};

double ms_since(TimePoint begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::string prompt_of(std::size_t i) {
    return fmt::format(
        "Once upon a time, there was a {} who had {} friends in the {}.",
        kAnimals[i % kAnimals.size()],
        2 + i / (kAnimals.size() * kPlaces.size()),
        kPlaces[i / kAnimals.size() % kPlaces.size()]
    );
}

std::string generate_request(const HttpHold& hold, std::size_t prompt, const std::string& rid) {
    const bool is_streamed = !rid.empty();
    Json body{
        {"text", prompt_of(prompt)},
        {"stream", is_streamed},
        {"incremental_streaming_output", is_streamed},
        {"sampling_params",
         {{"max_new_tokens", hold.output_len}, {"ignore_eos", true}, {"temperature", 0}}}};
    if (is_streamed) body["rid"] = rid;
    return http_request("POST", "/generate", body.dump());
}

// The expected output of a prompt: the whole text, and its tokens.
struct Output {
    std::string text{};
    std::vector<std::int64_t> ids{};
    friend bool operator==(const Output&, const Output&) = default;
};

void append(Output& output, const Json& event) {
    output.text += event["text"].get_ref<const std::string&>();
    for (const Json& id : event["output_ids"]) output.ids.push_back(id.get<std::int64_t>());
}

// Decodes the body of a chunked answer.
class Chunks {
  public:
    // Adds received bytes, and moves complete bytes of the body to `body`. Returns whether the body
    // is complete. Errors: not a chunked answer.
    Result<bool> add(std::string_view bytes, std::string& body) {
        waiting_ += bytes;
        if (!has_head_) {
            const std::size_t end = waiting_.find("\r\n\r\n");
            if (end == std::string::npos) return false;
            if (!waiting_.starts_with("HTTP/1.1 200") ||
                waiting_.find("Transfer-Encoding: chunked") > end)
                return make_error(
                    ErrorCode::kInternal, "not a chunked answer with status 200: {}", waiting_
                );
            waiting_.erase(0, end + 4);
            has_head_ = true;
        }
        for (std::size_t at = 0;;) {
            std::size_t size = 0;
            const std::size_t line = waiting_.find("\r\n", at);
            const bool has_line = line != std::string::npos;
            if (has_line) {
                const char* digits = waiting_.data() + at;
                if (std::from_chars(digits, waiting_.data() + line, size, 16).ec != std::errc{})
                    return make_error(ErrorCode::kInternal, "a chunk's size is not a number");
            }
            const std::size_t end = line + 2 + size + 2;
            if (!has_line || waiting_.size() < end) {
                waiting_.erase(0, at);
                return false;
            }
            if (size == 0) {
                const bool is_all = waiting_.size() == end;
                *this = {};
                if (is_all) return true;
                return make_error(ErrorCode::kInternal, "bytes follow an answer");
            }
            body.append(waiting_, line + 2, size);
            at = end;
        }
    }

  private:
    std::string waiting_{};
    bool has_head_ = false;
};

class Streams {
  public:
    Streams(const HttpHold& hold, HttpHoldResult& result) : hold_(hold), result_(result) {}
    ~Streams() {
        if (poll_ >= 0) ::close(poll_);
    }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    Result<> learn_references();
    Result<> open_all();
    // Reads all sockets once and handles what arrived.
    void step();

    bool replaces = true;  // whether a stream that ends is replaced by a new one
    [[nodiscard]] int num_open() const { return num_open_; }

  private:
    struct Stream {
        HttpSocket socket{};
        std::size_t prompt = 0;
        std::string rid{};
        Chunks chunks{};
        std::string body{};  // received events, from the first incomplete one on
        Output output{};
        bool is_done = false;  // "[DONE]" came
    };

    void start(Stream& stream);
    void read(Stream& stream);
    Result<> take_events(Stream& stream);
    void lose(Stream& stream, std::string_view why);
    void mix(Stream& stream, std::string_view why);

    const HttpHold& hold_;
    HttpHoldResult& result_;
    std::vector<Output> references_{};
    std::vector<std::unique_ptr<Stream>> streams_{};
    int poll_ = ::epoll_create1(EPOLL_CLOEXEC);
    int num_open_ = 0;
    std::size_t num_started_ = 0;
};

Result<> Streams::learn_references() {
    ASSIGN_OR_RETURN(HttpSocket socket, HttpSocket::connect(hold_.server));
    for (std::size_t i = 0; i < static_cast<std::size_t>(hold_.prompts); ++i) {
        ASSIGN_OR_RETURN(const std::string body, socket.call(generate_request(hold_, i, "")));
        const Json answer = Json::parse(body, nullptr, /*allow_exceptions=*/false);
        if (answer.is_discarded() || !answer.contains("output_ids"))
            return make_error(ErrorCode::kInternal, "an answer without output_ids: {}", body);
        append(references_.emplace_back(), answer);
        const auto num_tokens = static_cast<std::int64_t>(references_.back().ids.size());
        if (num_tokens != hold_.output_len)
            return make_error(ErrorCode::kInternal, "an output has {} tokens", num_tokens);
    }
    return Ok{};
}

Result<> Streams::open_all() {
    for (int i = 0; i < hold_.streams; ++i) {
        Stream& stream = *streams_.emplace_back(std::make_unique<Stream>());
        ASSIGN_OR_RETURN(stream.socket, HttpSocket::connect(hold_.server));
        ::epoll_event event{.events = EPOLLIN, .data = {.ptr = &stream}};
        ::epoll_ctl(poll_, EPOLL_CTL_ADD, stream.socket.fd(), &event);
        start(stream);
        step();
    }
    return Ok{};
}

void Streams::start(Stream& stream) {
    stream.prompt = num_started_ % references_.size();
    stream.rid = fmt::format("hold-{}", num_started_++);
    stream.output = {};
    stream.body.clear();
    stream.is_done = false;
    ++num_open_;
    if (auto sent = stream.socket.send(generate_request(hold_, stream.prompt, stream.rid)); !sent)
        lose(stream, sent.error().message);
}

void Streams::step() {
    std::array<::epoll_event, 256> events{};
    const int num = ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), 20);
    for (int e = 0; e < num; ++e)
        read(*static_cast<Stream*>(events[static_cast<std::size_t>(e)].data.ptr));
}

void Streams::read(Stream& stream) {
    std::array<char, 64 << 10> buffer{};
    const ssize_t got = ::recv(stream.socket.fd(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return lose(stream, "the server closed the connection");
    const Result<bool> is_whole =
        stream.chunks.add({buffer.data(), static_cast<std::size_t>(got)}, stream.body);
    if (!is_whole) return lose(stream, is_whole.error().message);
    if (auto taken = take_events(stream); !taken) return mix(stream, taken.error().message);
    if (!*is_whole) return;
    if (!stream.is_done) return lose(stream, "its answer ended without [DONE]");
    if (stream.output != references_[stream.prompt])
        return mix(stream, "its output is not its prompt's: " + stream.output.text);
    ++result_.finished;
    --num_open_;
    if (replaces) start(stream);
}

// Errors: an event belongs to another stream.
Result<> Streams::take_events(Stream& stream) {
    constexpr std::string_view kData = "data: ";
    std::size_t at = 0;
    for (std::size_t end = 0; (end = stream.body.find("\n\n", at)) != std::string::npos;
         at = end + 2) {
        std::string_view event = std::string_view(stream.body).substr(at, end - at);
        event.remove_prefix(std::min(event.size(), kData.size()));
        if (event == "[DONE]") {
            stream.is_done = true;
            continue;
        }
        const Json json = Json::parse(event, nullptr, /*allow_exceptions=*/false);
        if (json.is_discarded() || !json.contains("output_ids") || !json.contains("meta_info"))
            return make_error(
                ErrorCode::kInternal, "an event without output_ids or meta_info: {}", event
            );
        if (json["meta_info"]["id"] != stream.rid)
            return make_error(
                ErrorCode::kInternal,
                "stream {} received an event of another request: {}",
                stream.rid,
                event
            );
        append(stream.output, json);
        result_.output_tokens += static_cast<std::int64_t>(json["output_ids"].size());
    }
    stream.body.erase(0, at);
    return Ok{};
}

// A lost stream is not replaced: later bytes on its connection could be its own.
void Streams::lose(Stream& stream, std::string_view why) {
    ++result_.lost;
    --num_open_;
    if (result_.first_problem.empty())
        result_.first_problem = fmt::format("{}: {}", stream.rid, why);
    stream.socket = {};
}

void Streams::mix(Stream& stream, std::string_view why) {
    lose(stream, why);
    --result_.lost;
    ++result_.mixed;
}

// Calls the control routes until told to stop.
Result<> poll_control(
    const HttpHold& hold, const std::atomic<bool>& must_stop, HttpHoldResult& result
) {
    ASSIGN_OR_RETURN(HttpSocket socket, HttpSocket::connect(hold.server));
    const auto timed = [&](const std::string& request, std::vector<double>& ms) -> Result<> {
        const TimePoint begin = Clock::now();
        RETURN_IF_ERROR(socket.call(request));
        ms.push_back(ms_since(begin));
        return Ok{};
    };
    const std::array questions{
        http_request("GET", "/is_paused"),
        http_request("GET", "/get_weight_version"),
        http_request("GET", "/health")};
    const std::string pause = http_request("POST", "/pause_generation", R"({"mode":"in_place"})");
    const std::string go_on = http_request("POST", "/continue_generation", "{}");
    TimePoint next_pause = Clock::now() + hold.pause_every;
    for (std::size_t i = 0; !must_stop; ++i) {
        RETURN_IF_ERROR(timed(questions[i % questions.size()], result.poll_ms));
        std::this_thread::sleep_for(hold.poll_every);
        if (Clock::now() < next_pause) continue;
        next_pause += hold.pause_every;
        RETURN_IF_ERROR(timed(pause, result.pause_ms));
        RETURN_IF_ERROR(timed(go_on, result.continue_ms));
    }
    return Ok{};
}

}  // namespace

Result<HttpHoldResult> hold_streams(const HttpHold& hold) {
    HttpHoldResult result;
    Streams streams(hold, result);
    RETURN_IF_ERROR(streams.learn_references());
    RETURN_IF_ERROR(streams.open_all());

    std::atomic<bool> must_stop = false;
    Result<> polled = Ok{};
    std::thread control([&] { polled = poll_control(hold, must_stop, result); });
    const TimePoint begin = Clock::now();
    const std::chrono::milliseconds first_mark = hold.duration / 6;
    bool is_marked = false;
    result.open_min = streams.num_open();
    result.output_tokens = 0;
    while (Clock::now() - begin < hold.duration) {
        streams.step();
        result.open_min = std::min(result.open_min, streams.num_open());
        if (is_marked || Clock::now() - begin < first_mark) continue;
        is_marked = true;
        if (hold.at_memory_mark) hold.at_memory_mark(first_mark);
    }
    if (hold.at_memory_mark) hold.at_memory_mark(hold.duration);
    result.seconds = ms_since(begin) / 1000;
    const std::int64_t num_tokens = result.output_tokens;
    must_stop = true;
    control.join();

    streams.replaces = false;
    const TimePoint end = Clock::now() + hold.end_timeout;
    while (streams.num_open() > 0 && Clock::now() < end) streams.step();
    result.lost += streams.num_open();
    result.output_tokens = num_tokens;
    if (!polled) return polled.error();
    return result;
}

}  // namespace pitstop::bench
