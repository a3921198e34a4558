#include "grammar/trial.h"

#include "base/system_error.h"
#include "grammar/compiled_grammar.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace pitstop::grammar {
namespace {

constexpr int kNice = 5;  // added to the niceness of the owner
// A trial's answer must arrive within this time after the trial's own limit. Also limits writes to
// a process that does not read.
constexpr std::chrono::milliseconds kWaitMore = std::chrono::seconds(5);
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

// Reads until the sender closes. Returns nothing if no bytes arrived in time, too many arrived, or
// reading failed.
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

// The first message to a trial process; the vocabulary's bytes follow it.
struct Head {
    std::uint64_t vocabulary_bytes = 0;
    std::int64_t wall_ms = 0;  // limit of a trial
};

// A message of one byte and one descriptor.
struct FdMessage {
    FdMessage() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
    }
    FdMessage(const FdMessage&) = delete;
    FdMessage& operator=(const FdMessage&) = delete;

    char byte = 0;
    iovec part{.iov_base = &byte, .iov_len = 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
};

bool send_fd(int socket, int fd) {
    FdMessage sent;
    cmsghdr* const header = CMSG_FIRSTHDR(&sent.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    ssize_t num = 0;
    do num = ::sendmsg(socket, &sent.message, MSG_NOSIGNAL);
    while (num < 0 && errno == EINTR);
    return num == 1;
}

// Returns the next descriptor; nothing if the owner is gone.
std::optional<int> receive_fd(int socket) {
    FdMessage received;
    ssize_t num = 0;
    do num = ::recvmsg(socket, &received.message, MSG_CMSG_CLOEXEC);
    while (num < 0 && errno == EINTR);
    if (num <= 0) return std::nullopt;
    const cmsghdr* const header = CMSG_FIRSTHDR(&received.message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return std::nullopt;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return fd;
}

// Makes a write to the socket fail after this time, so that it does not wait for a process that
// does not read.
void bound_writes(int fd, std::chrono::milliseconds most) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timeval value{
        .tv_sec = seconds.count(), .tv_usec = std::chrono::microseconds(most - seconds).count()};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof(value));
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

// Returns the bytes of memory that this process has resident.
std::int64_t resident_bytes() {
    std::array<char, 64> text{};
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr) return 0;
    const bool is_read = std::fgets(text.data(), static_cast<int>(text.size()), file) != nullptr;
    std::fclose(file);
    const char* const second = is_read ? std::strchr(text.data(), ' ') : nullptr;
    std::int64_t pages = 0;
    if (second != nullptr) std::from_chars(second + 1, text.data() + text.size(), pages);
    return pages * ::sysconf(_SC_PAGESIZE);
}

// Returns the most bytes that this process ever had resident.
std::int64_t most_resident_bytes() {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return std::int64_t{used.ru_maxrss} << 10;
}

// Sanitizers reserve more address space than any bound would allow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBoundsMemory = false;
#else
constexpr bool kBoundsMemory = true;
#endif

constexpr char kLate = 't';
int late_fd = -1;  // this process's trial; the signal handler writes kLate to it

// After the process has run for `most`, a signal makes it answer kLate and end.
void answer_when_late(int fd, std::chrono::milliseconds most) {
    late_fd = fd;
    std::signal(SIGALRM, [](int) {
        ::send(late_fd, &kLate, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        ::_exit(0);
    });
    itimerval timer{};
    timer.it_value.tv_sec = most.count() / 1000;
    timer.it_value.tv_usec = most.count() % 1000 * 1000;
    ::setitimer(ITIMER_REAL, &timer, nullptr);
}

// Returns the answer about a grammar: a letter, then a text.
std::string verdict_on(
    std::string_view given, const Result<std::shared_ptr<const SortedVocabulary>>& vocabulary
) {
    if (!vocabulary) return "u" + vocabulary.error().message;
    const messages::Grammar grammar{
        static_cast<messages::GrammarKind>(given.front()), std::string(given.substr(1))};
    const std::int64_t begin = resident_bytes();
    const std::ostringstream warnings;
    std::cerr.rdbuf(warnings.rdbuf());
    const auto compiled = CompiledGrammar::compile(grammar, **vocabulary);
    std::cerr.rdbuf(nullptr);
    if (!compiled) return "e" + compiled.error().message;
    std::string said = warnings.str();
    const std::int64_t peak = std::max<std::int64_t>(most_resident_bytes() - begin, 0);
    if (said.empty()) return fmt::format("o{} {}", (*compiled)->bytes(), peak);
    // Each warning is a line "[time] file:line: Warning: text". Returns only the first one.
    constexpr std::string_view kMark = "Warning: ";
    said = said.substr(0, said.find('\n'));
    if (const auto at = said.find(kMark); at != std::string::npos)
        said = said.substr(at + kMark.size());
    return fmt::format("e{} cannot be compiled: {}", name_of(grammar.kind), said);
}

// Runs `work` on a thread with a stack of kStackBytes. Returns false if the thread cannot start.
bool run_on_small_stack(std::function<void()> work) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return false;
    ::pthread_attr_setstacksize(&attributes, Trials::kStackBytes);
    pthread_t thread{};
    const auto run = [](void* given) -> void* {
        (*static_cast<std::function<void()>*>(given))();
        return nullptr;
    };
    const bool has_begun = ::pthread_create(&thread, &attributes, run, &work) == 0;
    ::pthread_attr_destroy(&attributes);
    if (has_begun) ::pthread_join(thread, nullptr);
    return has_begun;
}

// Compiles the grammar that arrives at the descriptor `fd`, and writes the answer to `fd`.
void try_one(
    int fd,
    std::chrono::milliseconds wall_max,
    const Result<std::shared_ptr<const SortedVocabulary>>& vocabulary
) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::nice(kNice) < 0) errno = 0;  // fails only at the lowest priority, which is low enough
    answer_when_late(fd, wall_max);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, Trials::kCpuSeconds);
    if (kBoundsMemory) limit(RLIMIT_AS, address_space() + Trials::kMemoryBytes);
    const auto wait_ms = static_cast<int>((wall_max + kWaitMore).count());
    const auto given = read_all(fd, messages::kGrammarBytesMax + 1, wait_ms);
    if (!given || given->empty()) return;
    std::string verdict;
    if (!run_on_small_stack([&] { verdict = verdict_on(*given, vocabulary); })) return;
    std::signal(SIGALRM, SIG_IGN);
    write_all(fd, verdict);
}

}  // namespace

Trials::~Trials() { stop(); }

// The forks of the trial process end with it (PR_SET_PDEATHSIG).
void Trials::stop() {
    const MutexLock lock(mutex_);
    is_over_ = true;
    end_process();
}

void Trials::end_process() {
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
            "cannot start the process that tries grammars: {}: {}",
            what,
            std::strerror(number)
        );
    };
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
        return failed("socketpair", errno);
    // The child gets its end under this number, without the flag that closes it at exec.
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
    bound_writes(socket_, kWaitMore);
    const Head head{.vocabulary_bytes = vocabulary_.size(), .wall_ms = wall_max_.count()};
    const std::string_view bytes(reinterpret_cast<const char*>(&head), sizeof(head));
    if (write_all(socket_, bytes) && write_all(socket_, vocabulary_)) return Ok{};
    end_process();
    return failed("its socket", EPIPE);
}

// Gives a trial to the process; starts another process, once, if that one has ended.
Result<> Trials::give(int fd) {
    const MutexLock lock(mutex_);
    if (is_over_)
        return Error{ErrorCode::kUnavailable, "this process is ending and tries no grammars"};
    for (int i = 0; i < 2; ++i) {
        if (socket_ < 0) RETURN_IF_ERROR(start());
        if (send_fd(socket_, fd)) return Ok{};
        end_process();
    }
    return Error{
        ErrorCode::kUnavailable, "the process that tries grammars exits as soon as it starts"};
}

Result<Tried> Trials::run(const messages::Grammar& grammar) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return make_error(
            code_of_errno(errno, ErrorCode::kUnavailable),
            "cannot make a socket to try a grammar: {}",
            std::strerror(errno)
        );
    }
    const Result<> given = give(ends[1]);
    ::close(ends[1]);
    std::optional<std::string> answer;
    if (given) {
        const auto wait_max = wall_max_ + kWaitMore;
        bound_writes(ends[0], wait_max);
        write_all(ends[0], std::string(1, static_cast<char>(grammar.kind)) + grammar.text);
        ::shutdown(ends[0], SHUT_WR);
        answer = read_all(ends[0], kAnswerBytesMax, static_cast<int>(wait_max.count()));
    }
    ::close(ends[0]);
    RETURN_IF_ERROR(given);
    if (!answer || answer->starts_with(kLate)) {
        return make_error(
            ErrorCode::kUnavailable,
            "{} was not compiled within {} ms on a busy machine; try again",
            name_of(grammar.kind),
            wall_max_.count()
        );
    }
    if (answer->empty()) {
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
    Tried tried;
    const char* const end = text.data() + text.size();
    const char* const after = std::from_chars(text.data(), end, tried.bytes).ptr;
    if (after != end) std::from_chars(after + 1, end, tried.peak_bytes);
    return tried;
}

int serve_trials(int socket) {
    ::close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
    std::signal(SIGCHLD, SIG_IGN);  // the kernel removes ended forks, so nobody waits for them
    Head head;
    if (::recv(socket, &head, sizeof(head), MSG_WAITALL) != ssize_t{sizeof(head)}) return 1;
    std::string bytes(head.vocabulary_bytes, '\0');
    const auto num = static_cast<ssize_t>(bytes.size());
    if (::recv(socket, bytes.data(), bytes.size(), MSG_WAITALL) != num) return 1;
    Result<Vocabulary> read = Vocabulary::from_bytes(bytes);
    if (!read) return 1;
    const auto vocabulary = SortedVocabulary::make(*std::move(read));
    while (const std::optional<int> fd = receive_fd(socket)) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::close(socket);
            try_one(*fd, std::chrono::milliseconds(head.wall_ms), vocabulary);
            std::_Exit(0);
        }
        ::close(*fd);
    }
    return 0;
}

}  // namespace pitstop::grammar
