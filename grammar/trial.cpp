#include "grammar/trial.h"

#include "base/system_error.h"
#include "grammar/compiled_grammar.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace pitstop::grammar {
namespace {

constexpr int kNice = 5;  // more than its owner has
constexpr int kWaitMs = (Trials::kWallSeconds + 5) * 1000;
constexpr std::size_t kAnswerBytesMax = 1 << 16;

bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t num = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(num));
    }
    return true;
}

// Reads up to the sender's end. Nothing: it takes too long, has too many bytes, or failed.
std::optional<std::string> read_all(int fd, std::size_t bytes_max, int wait_ms) {
    std::string bytes;
    std::array<char, 1 << 16> buffer{};
    for (;;) {
        pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
        const int num_ready = ::poll(&one, 1, wait_ms);
        if (num_ready < 0 && errno == EINTR) continue;
        if (num_ready <= 0) return std::nullopt;
        const ssize_t num = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (num < 0 && errno == EINTR) continue;
        if (num == 0) return bytes;
        if (num < 0 || bytes.size() + static_cast<std::size_t>(num) > bytes_max)
            return std::nullopt;
        bytes.append(buffer.data(), static_cast<std::size_t>(num));
    }
}

// Room for one descriptor in a message's control data.
struct alignas(cmsghdr) Control {
    std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

bool send_fd(int socket, int fd) {
    char byte = 0;
    iovec part{.iov_base = &byte, .iov_len = 1};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    ssize_t num = 0;
    do num = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    while (num < 0 && errno == EINTR);
    return num == 1;
}

// Returns the next descriptor; nothing if the owner is gone.
std::optional<int> receive_fd(int socket) {
    char byte = 0;
    iovec part{.iov_base = &byte, .iov_len = 1};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    ssize_t num = 0;
    do num = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (num < 0 && errno == EINTR);
    if (num <= 0) return std::nullopt;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return std::nullopt;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return fd;
}

void limit(int resource, rlim_t value) {
    const rlimit both{.rlim_cur = value, .rlim_max = value};
    ::setrlimit(static_cast<decltype(RLIMIT_CPU)>(resource), &both);
}

// Returns the bytes of address space that this process has.
rlim_t address_space() {
    std::array<char, 64> text{};
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr) return 0;
    const bool is_read = std::fgets(text.data(), static_cast<int>(text.size()), file) != nullptr;
    std::fclose(file);
    std::uint64_t pages = 0;
    if (is_read) std::from_chars(text.data(), text.data() + text.size(), pages);
    return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// Sanitizers reserve more address space than any bound of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBoundsMemory = false;
#else
constexpr bool kBoundsMemory = true;
#endif

// Compiles the grammar that arrives at the descriptor, and answers there: a letter and a text.
void try_one(int fd, const Result<std::shared_ptr<const SortedVocabulary>>& vocabulary) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::nice(kNice) < 0) errno = 0;  // then it has the lowest priority there is
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, Trials::kCpuSeconds);
    if (kBoundsMemory) limit(RLIMIT_AS, address_space() + Trials::kMemoryBytes);
    ::alarm(Trials::kWallSeconds);
    const auto answer = [&](char kind, std::string_view text) {
        write_all(fd, std::string(1, kind) + std::string(text));
    };
    const auto given = read_all(fd, messages::kGrammarBytesMax + 1, kWaitMs);
    if (!given || given->empty()) return;
    if (!vocabulary) return answer('u', vocabulary.error().message);
    const messages::Grammar grammar{
        static_cast<messages::GrammarKind>(given->front()), given->substr(1)};
    const std::ostringstream warnings;
    std::cerr.rdbuf(warnings.rdbuf());
    const auto compiled = CompiledGrammar::compile(grammar, **vocabulary);
    std::cerr.rdbuf(nullptr);
    if (!compiled) return answer('e', compiled.error().message);
    std::string said = warnings.str();
    if (said.empty()) return answer('o', std::to_string((*compiled)->bytes()));
    // "[time] file:line: Warning: what", a line each: the first is enough.
    constexpr std::string_view kMark = "Warning: ";
    said = said.substr(0, said.find('\n'));
    if (const auto at = said.find(kMark); at != std::string::npos)
        said = said.substr(at + kMark.size());
    answer('e', fmt::format("{} cannot be compiled: {}", name_of(grammar.kind), said));
}

}  // namespace

Trials::~Trials() { stop(); }

// The forks of the process end with it.
void Trials::stop() {
    const MutexLock lock(mutex_);
    is_over_ = true;
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Result<> Trials::start() {
    std::array<int, 2> ends{};
    const auto failed = [](std::string_view what, int number) {
        return make_error(
            code_of_errno(number, ErrorCode::kUnavailable),
            "no process tries grammars: {}: {}",
            what,
            std::strerror(number)
        );
    };
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
        return failed("socketpair", errno);
    // The child's end gets a number of its own, without the flag that closes it.
    constexpr int kSocket = 3;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], kSocket);
    std::string name = "pitstop_grammar_trials";
    std::string argument(kArgument);
    std::string socket = std::to_string(kSocket);
    const std::array<char*, 4> arguments{name.data(), argument.data(), socket.data(), nullptr};
    const int number =
        ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (number != 0) {
        ::close(ends[0]);
        pid_ = -1;
        return failed("posix_spawn", number);
    }
    socket_ = ends[0];
    const auto len = static_cast<std::uint64_t>(vocabulary_.size());
    std::string head(reinterpret_cast<const char*>(&len), sizeof(len));
    if (!write_all(socket_, head) || !write_all(socket_, vocabulary_))
        return failed("its socket", EPIPE);
    return Ok{};
}

// A process that is gone is replaced, once.
Result<> Trials::give(int fd) {
    const MutexLock lock(mutex_);
    if (is_over_) return Error{ErrorCode::kUnavailable, "no grammar is tried any more"};
    for (int i = 0; i < 2; ++i) {
        if (socket_ < 0) RETURN_IF_ERROR(start());
        if (send_fd(socket_, fd)) return Ok{};
        ::close(std::exchange(socket_, -1));
        if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
    return Error{ErrorCode::kUnavailable, "the process that tries grammars ends at once"};
}

Result<std::int64_t> Trials::run(const messages::Grammar& grammar) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return make_error(
            code_of_errno(errno, ErrorCode::kUnavailable),
            "no socket to try a grammar: {}",
            std::strerror(errno)
        );
    }
    const Result<> given = give(ends[1]);
    ::close(ends[1]);
    std::optional<std::string> answer;
    if (given) {
        write_all(ends[0], std::string(1, static_cast<char>(grammar.kind)) + grammar.text);
        ::shutdown(ends[0], SHUT_WR);
        answer = read_all(ends[0], kAnswerBytesMax, kWaitMs);
    }
    ::close(ends[0]);
    RETURN_IF_ERROR(given);
    if (!answer || answer->empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} cannot be compiled in {} s and {} MiB",
            name_of(grammar.kind),
            kCpuSeconds,
            kMemoryBytes >> 20
        );
    }
    const std::string text = answer->substr(1);
    if (answer->front() == 'e') return Error{ErrorCode::kInvalidArgument, text};
    if (answer->front() == 'u') return Error{ErrorCode::kUnsupported, text};
    std::int64_t bytes = 0;
    std::from_chars(text.data(), text.data() + text.size(), bytes);
    return bytes;
}

int serve_trials(int socket) {
    ::close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
    std::signal(SIGCHLD, SIG_IGN);  // forks need not be waited for
    std::uint64_t len = 0;
    if (::recv(socket, &len, sizeof(len), MSG_WAITALL) != ssize_t{sizeof(len)}) return 1;
    std::string bytes(len, '\0');
    if (::recv(socket, bytes.data(), len, MSG_WAITALL) != static_cast<ssize_t>(len)) return 1;
    Result<Vocabulary> read = Vocabulary::from_bytes(bytes);
    if (!read) return 1;
    const auto vocabulary = SortedVocabulary::make(*std::move(read));
    while (const std::optional<int> fd = receive_fd(socket)) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::close(socket);
            try_one(*fd, vocabulary);
            std::_Exit(0);
        }
        ::close(*fd);
    }
    return 0;
}

}  // namespace pitstop::grammar
