#include "tp_worker/groups/host_group.h"

#include "base/log.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::string_view kHostMagic = "PITSTOPB";
constexpr std::uint32_t kVersion = 1;
constexpr char kBroadcast[] = {'B', 'C', 'S', 'T'};
constexpr std::uint32_t kTextMax = 16 << 10;
constexpr auto kHostFarewellMax = std::chrono::milliseconds(200);
// A trainer listens before it announces its address. A join gives up if nobody listens for this
// long: the trainer has died, and other groups wait to be joined.
constexpr auto kListenMax = std::chrono::seconds(5);

struct Header {
    char magic[4] = {};
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
};

void append(std::string& to, std::uint32_t number) {
    char raw[sizeof number];
    std::memcpy(raw, &number, sizeof number);
    to.append(raw, sizeof raw);
}

class HostGroup : public BroadcastGroup {
  public:
    explicit HostGroup(TcpStream stream) : stream_(std::move(stream)) {}

    Result<> make_room(std::int64_t) override { return Ok{}; }

    Result<Landed> receive(
        const Broadcast& broadcast, std::vector<std::byte>& host, const Patience& patience
    ) override {
        std::byte raw[20];
        RETURN_IF_ERROR(stream_.read(raw, patience));
        Header header;
        std::memcpy(header.magic, raw, 4);
        std::memcpy(&header.number, raw + 4, 8);
        std::memcpy(&header.bytes, raw + 12, 8);
        if (std::memcmp(header.magic, kBroadcast, 4) != 0 || header.number != next_) {
            return make_error(
                ErrorCode::kMalformed,
                "the received message is not broadcast {} of this group",
                next_
            );
        }
        const auto num_bytes = static_cast<std::size_t>(broadcast.bytes());
        if (header.bytes != num_bytes) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "broadcast {} has {} bytes; the update's tensors have {}",
                next_,
                header.bytes,
                num_bytes
            );
        }
        ++next_;
        host.resize(num_bytes);
        RETURN_IF_ERROR(stream_.read(host, patience));
        return Landed{.bytes = host};
    }

    void refuse(const std::string& reason) override {
        const std::string text = reason.substr(0, kTextMax);
        std::string message;
        append(message, static_cast<std::uint32_t>(text.size()));
        message += text;
        const std::atomic<bool> never{false};
        // A trainer that no longer reads learns of the refusal from the hang-up alone.
        static_cast<void>(stream_.write(
            std::as_bytes(std::span(message)), {Clock::now() + kHostFarewellMax, never}
        ));
    }

    void leave() override {}  // closing the connection is enough
    [[nodiscard]] bool is_over() override { return stream_.is_closed(); }

  private:
    TcpStream stream_;
    std::uint64_t next_ = 0;
};

}  // namespace

Result<std::shared_ptr<BroadcastGroup>> join_host_group(
    const messages::GroupSpec& spec, std::int64_t rank, const Patience& patience
) {
    const Patience connecting{
        std::min<TimePoint>(patience.deadline, Clock::now() + kListenMax), patience.is_called_off};
    Result<TcpStream> connected = TcpStream::connect(spec.address, spec.port, connecting);
    if (!connected) {
        const bool is_given_up = connected.error().code == ErrorCode::kDeadlineExceeded &&
                                 Clock::now() < patience.deadline;
        if (!is_given_up) return connected.error();
        return make_error(
            ErrorCode::kUnavailable,
            "nothing has listened at {}:{} for {} s; a trainer must listen before it calls",
            printable(spec.address),
            spec.port,
            kListenMax.count()
        );
    }
    TcpStream& stream = *connected;
    std::string hello(kHostMagic);
    append(hello, kVersion);
    append(hello, static_cast<std::uint32_t>(rank));
    append(hello, static_cast<std::uint32_t>(spec.world_size));
    append(hello, static_cast<std::uint32_t>(spec.group.size()));
    hello += spec.group;
    RETURN_IF_ERROR(stream.write(std::as_bytes(std::span(hello)), patience));
    std::uint32_t length = 0;
    RETURN_IF_ERROR(stream.read(std::as_writable_bytes(std::span(&length, 1)), patience));
    if (length > kTextMax)
        return make_error(
            ErrorCode::kMalformed, "the trainer's answer does not follow this protocol"
        );
    if (length != 0) {
        std::string why(length, '\0');
        RETURN_IF_ERROR(stream.read(std::as_writable_bytes(std::span(why)), patience));
        return make_error(
            ErrorCode::kFailedPrecondition, "the trainer refuses: {}", printable(why)
        );
    }
    return std::shared_ptr<BroadcastGroup>(std::make_shared<HostGroup>(std::move(stream)));
}

}  // namespace pitstop::tp_worker
