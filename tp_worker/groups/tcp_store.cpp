#include "tp_worker/groups/tcp_store.h"

#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr char kValidate = 0;
constexpr char kGet = 3;
constexpr char kAdd = 4;
constexpr char kWait = 6;
constexpr char kPing = 13;
constexpr std::uint32_t kStoreMagic = 0x3c85f7ce;
constexpr std::uint32_t kNonce = 0x01020304;

template <class Number>
void put(std::string& bytes, Number number) {
    char raw[sizeof number];
    std::memcpy(raw, &number, sizeof number);  // little-endian, like this machine
    bytes.append(raw, sizeof raw);
}

void put_text(std::string& bytes, std::string_view text) {
    put(bytes, static_cast<std::uint64_t>(text.size()));
    bytes.append(text);
}

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

template <class Number>
Result<Number> read_number(TcpStream& stream, const Patience& patience) {
    Number number{};
    RETURN_IF_ERROR(stream.read(std::as_writable_bytes(std::span(&number, 1)), patience));
    return number;
}

}  // namespace

char TcpStore::code(char torch2) const {
    return static_cast<char>(version_ == StoreVersion::kTorch2 ? torch2 : torch2 - 1);
}

Result<TcpStore> TcpStore::connect(
    const std::string& address, std::int64_t port, StoreVersion version, const Patience& patience
) {
    ASSIGN_OR_RETURN(TcpStream stream, TcpStream::connect(address, port, patience));
    TcpStore store(std::move(stream), version);
    if (version == StoreVersion::kTorch1) return store;
    // Sent in one write: a server that sees only a part of VALIDATE drops the connection.
    std::string greeting;
    put(greeting, kValidate);
    put(greeting, kStoreMagic);
    put(greeting, kPing);
    put(greeting, kNonce);
    RETURN_IF_ERROR(store.stream_.write(bytes_of(greeting), patience));
    ASSIGN_OR_RETURN(
        const std::uint32_t nonce, read_number<std::uint32_t>(store.stream_, patience)
    );
    if (nonce != kNonce) {
        return make_error(
            ErrorCode::kMalformed, "{}:{} does not answer as a TCPStore does", address, port
        );
    }
    return store;
}

Result<std::int64_t> TcpStore::increase(
    std::string_view key, std::int64_t delta, const Patience& patience
) {
    std::string query;
    put(query, code(kAdd));
    put_text(query, key);
    put(query, delta);
    RETURN_IF_ERROR(stream_.write(bytes_of(query), patience));
    return read_number<std::int64_t>(stream_, patience);
}

// With some servers a GET of a missing key ends the connection, so WAIT comes first.
Result<std::string> TcpStore::wait_for_value(
    std::string_view key, std::size_t bytes_max, const Patience& patience
) {
    std::string query;
    put(query, code(kWait));
    put(query, std::uint64_t{1});
    put_text(query, key);
    RETURN_IF_ERROR(stream_.write(bytes_of(query), patience));
    ASSIGN_OR_RETURN(const std::uint8_t status, read_number<std::uint8_t>(stream_, patience));
    if (status != 0) {
        return make_error(ErrorCode::kMalformed, "the store answers WAIT with {}", status);
    }
    query.clear();
    put(query, code(kGet));
    put_text(query, key);
    RETURN_IF_ERROR(stream_.write(bytes_of(query), patience));
    ASSIGN_OR_RETURN(const std::uint64_t size, read_number<std::uint64_t>(stream_, patience));
    if (size > bytes_max) {
        return make_error(
            ErrorCode::kTooLarge, "'{}' has {} bytes; at most {} are accepted", key, size, bytes_max
        );
    }
    std::string value(static_cast<std::size_t>(size), '\0');
    RETURN_IF_ERROR(stream_.read(std::as_writable_bytes(std::span(value)), patience));
    return value;
}

}  // namespace pitstop::tp_worker
