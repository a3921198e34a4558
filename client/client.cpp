#include "client/client.h"

#include "base/time.h"
#include "bus/limits.h"
#include "bus/run_dir.h"
#include "client/io_loop.h"
#include "client/mailbox.h"
#include "messages/door_envelope.h"

#include <algorithm>
#include <future>
#include <optional>
#include <random>
#include <utility>

namespace pitstop {
namespace {

std::string random_rid() {
    std::random_device random;  // from the kernel; ids are unique over all clients of a tree
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// After the deadline, the tree's own answer, which is more precise, may still arrive for this long.
constexpr auto kReplyGrace = std::chrono::milliseconds(500);

TimePoint deadline_after(std::chrono::milliseconds timeout) {
    return Clock::now() + std::min(timeout, Stream::kForever);
}

// Checks the size before sending; the door checks it again. A door that refuses a message for its
// size does not know the message's call.
Result<messages::Frames> to_frames(const messages::Generate& request) {
    if (const auto problem = messages::invalid(request)) {
        return make_error(
            ErrorCode::kInvalidArgument, "{}: {}", messages::Generate::kType, *problem
        );
    }
    messages::Frames frames = encode(request);
    if (auto error = problem_of_size(frames)) return *std::move(error);
    return frames;
}

// Starts a request. Returns nothing if the request could not be sent; then its sink gets the error
// instead of the output.
std::optional<RequestNumber> start(
    IoLoop& io, messages::Generate request, IoLoop::Sink sink, std::chrono::milliseconds timeout
) {
    Result<messages::Frames> frames = to_frames(request);
    if (!frames) {
        io.refuse_request(request.rid, frames.error(), std::move(sink));
        return std::nullopt;
    }
    return io.start_request(
        *std::move(frames), std::move(request.rid), std::move(sink), deadline_after(timeout)
    );
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
    IoLoop::Args args{
        .data_endpoint = std::move(options.data_endpoint),
        .admin_endpoint = std::move(options.admin_endpoint),
        .name = std::move(options.name),
        .open_max = options.open_requests_max,
        .has_callbacks_on_caller = options.callbacks == CallbackThread::kCaller,
    };
    if (!options.run_dir.empty()) {
        ASSIGN_OR_RETURN(const bus::RunDir run_dir, bus::RunDir::open(options.run_dir));
        args.data_endpoint = run_dir.data_door();
        args.admin_endpoint = run_dir.admin_door();
    }
    if (args.data_endpoint.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument, "neither run_dir nor data_endpoint is given"
        );
    }
    if (!options.key_file.empty()) {
        ASSIGN_OR_RETURN(args.key, bus::read_client_key(options.key_file));
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<IoLoop> io, IoLoop::start(std::move(args)));
    // its destructor stops the loop, also after an error below
    std::unique_ptr<Client> client(new Client(io));
    RETURN_IF_ERROR(io->wait_ready(std::min(options.connect_timeout, Stream::kForever)));
    return client;
}

Client::~Client() {
    io_->stop();
    io_->ready().close();
}

messages::HelloReply Client::hello() const { return io_->hello(); }
std::uint64_t Client::num_trees() const { return io_->num_trees(); }
bool Client::is_connected() const { return io_->is_connected(); }
CallId Client::next_call() { return io_->next_call(); }

Stream Client::generate(messages::Generate request, std::chrono::milliseconds timeout) {
    if (request.rid.empty()) request.rid = random_rid();
    const std::string rid = request.rid;
    const auto mailbox = std::make_shared<Mailbox>();
    const std::optional<RequestNumber> number = start(
        *io_,
        std::move(request),
        [mailbox](messages::OutputChunk chunk) { mailbox->put(std::move(chunk)); },
        timeout
    );
    return Stream(rid, number, mailbox, io_);
}

std::string Client::generate(
    messages::Generate request, OnChunk on_chunk, std::chrono::milliseconds timeout
) {
    if (request.rid.empty()) request.rid = random_rid();
    std::string rid = request.rid;
    IoLoop::Sink sink = std::move(on_chunk);
    if (io_->has_callbacks_on_caller()) {
        const auto mailbox = std::make_shared<Mailbox>();
        auto callback =
            std::make_shared<const std::function<void()>>([mailbox, on_chunk = std::move(sink)] {
                on_chunk(*mailbox->take());
            });
        sink = [mailbox,
                callback = std::move(callback),
                &ready = io_->ready()](messages::OutputChunk chunk) {
            if (!mailbox->put(std::move(chunk))) return;  // a queued callback delivers it
            ready.push(callback);
        };
    }
    start(*io_, std::move(request), std::move(sink), timeout);
    return rid;
}

Result<messages::OutputChunk> Client::generate_blocking(
    messages::Generate request, std::chrono::milliseconds timeout
) {
    if (io_->is_on_thread()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "generate_blocking would never return in a callback: use generate there"
        );
    }
    Stream stream = generate(std::move(request), timeout);
    return stream.wait();  // the request's own deadline ends the wait
}

void Client::cancel(std::vector<std::string> rids) { io_->cancel(std::move(rids)); }
void Client::cancel_calls(std::vector<CallId> calls) { io_->cancel_calls(std::move(calls)); }

Result<messages::TokenizeReply> Client::tokenize(std::string_view text) {
    messages::Tokenize request;
    request.text = text;
    return call(std::move(request));
}

Result<messages::TokenizeReply> Client::detokenize(std::vector<TokenId> ids) {
    messages::Tokenize request;
    request.ids = std::move(ids);
    return call(std::move(request));
}

Result<messages::TokenizeReply> Client::render_chat(std::string_view variables) {
    messages::RenderChat question;
    question.variables = variables;
    return call(std::move(question));
}

void Client::start_call(Call call, std::chrono::milliseconds timeout, OnFrames on_reply) {
    io_->start_call(
        {.door = call.door,
         .order = call.order,
         .id = call.id,
         .frames = std::move(call.frames),
         .on_reply = std::move(on_reply),
         .deadline = deadline_after(timeout) + kReplyGrace}
    );
}

Result<messages::Frames> Client::call_frames(Call call, std::chrono::milliseconds timeout) {
    if (io_->is_on_thread()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "a blocking call would never return in a callback: make it on another thread"
        );
    }
    // Shared with the I/O thread, which may still be in set_value() when get() returns.
    const auto promise = std::make_shared<std::promise<Result<messages::Frames>>>();
    std::future<Result<messages::Frames>> future = promise->get_future();
    start_call(std::move(call), timeout, [promise](Result<messages::Frames> reply) {
        promise->set_value(std::move(reply));
    });
    return future.get();
}

void Client::call_frames(Call call, std::chrono::milliseconds timeout, OnFrames on_reply) {
    OnFrames sink = std::move(on_reply);
    if (io_->has_callbacks_on_caller()) {
        sink = [on_reply = std::move(sink), &ready = io_->ready()](Result<messages::Frames> reply) {
            ready.push(std::make_shared<const std::function<void()>>(
                [on_reply, reply = std::move(reply)] { on_reply(reply); }
            ));
        };
    }
    start_call(std::move(call), timeout, std::move(sink));
}

int Client::ready_fd() const { return io_->ready().fd(); }
std::size_t Client::run_callbacks(std::size_t max) {
    const std::shared_ptr<IoLoop> io = io_;  // a callback may destroy this client
    return io->ready().run(max);
}

}  // namespace pitstop
