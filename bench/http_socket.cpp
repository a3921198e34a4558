#include "bench/http_socket.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pitstop::bench {

HttpSocket::~HttpSocket() {
    if (fd_ >= 0) ::close(fd_);
}

Result<HttpAddress> http_address_of(const std::string& run_dir) {
    std::ifstream file(run_dir + "/tree.json");
    const auto tree = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (tree.is_discarded() || !tree.contains("url") || !tree["url"].is_string())
        return make_error(ErrorCode::kNotFound, "{}/tree.json names no url", run_dir);
    const std::string url = tree["url"];  // http://127.0.0.1:30000
    const std::size_t host = url.find("//") + 2;
    const std::size_t colon = url.rfind(':');
    return HttpAddress{
        .host = url.substr(host, colon - host),
        .port = static_cast<std::uint16_t>(std::stoi(url.substr(colon + 1)))};
}

Result<HttpSocket> HttpSocket::connect(const HttpAddress& address) {
    HttpSocket socket;
    socket.fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(address.port);
    const int one = 1;
    ::setsockopt(socket.fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::inet_pton(AF_INET, address.host.c_str(), &place.sin_addr) != 1 ||
        ::connect(socket.fd_, reinterpret_cast<::sockaddr*>(&place), sizeof place) != 0) {
        return make_error(
            ErrorCode::kUnavailable, "{}:{}: {}", address.host, address.port, std::strerror(errno)
        );
    }
    return socket;
}

Result<> HttpSocket::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent < 0)
            return make_error(ErrorCode::kUnavailable, "cannot send: {}", std::strerror(errno));
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return Ok{};
}

Result<std::string> HttpSocket::call(std::string_view request) {
    constexpr std::string_view kLength = "Content-Length: ";
    constexpr std::string_view kHeadEnd = "\r\n\r\n";
    RETURN_IF_ERROR(send(request));
    std::string answer;
    std::array<char, 64 << 10> buffer{};
    for (;;) {
        const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
        if (got <= 0) return make_error(ErrorCode::kUnavailable, "the server closed a connection");
        answer.append(buffer.data(), static_cast<std::size_t>(got));
        const std::size_t head_end = answer.find(kHeadEnd);
        const std::size_t length = answer.find(kLength);
        if (head_end == std::string::npos || length > head_end) continue;
        std::size_t num_bytes = 0;
        const char* digits = answer.data() + length + kLength.size();
        std::from_chars(digits, answer.data() + answer.size(), num_bytes);
        const std::size_t body = head_end + kHeadEnd.size();
        if (answer.size() < body + num_bytes) continue;
        if (!answer.starts_with("HTTP/1.1 200"))
            return make_error(ErrorCode::kInternal, "not an answer with status 200: {}", answer);
        return answer.substr(body);
    }
}

std::string http_request(std::string_view method, std::string_view path, std::string_view body) {
    std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n", method, path);
    if (method == "POST") {
        head +=
            fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    }
    return head.append("\r\n").append(body);
}

}  // namespace pitstop::bench
