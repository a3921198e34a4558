#include "bench/tree.h"

#include "base/time.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace pitstop::bench {
namespace {

constexpr std::chrono::seconds kStopTimeout{20};
constexpr int kPollMs = 20;

int status_as_shell(int status) {
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Tree::Tree(Tree&& other) noexcept
    : launcher_(std::exchange(other.launcher_, 0)),
      output_fd_(std::exchange(other.output_fd_, -1)),
      run_dir_(std::exchange(other.run_dir_, {})) {}

Tree::~Tree() {
    stop();
    if (output_fd_ >= 0) ::close(output_fd_);
    std::error_code error;
    if (!run_dir_.empty()) std::filesystem::remove_all(run_dir_, error);
}

Result<Tree> Tree::start(const Args& args) {
    Tree tree;
    std::string pattern = std::filesystem::temp_directory_path() / "pitstop-bench-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
        return make_error(
            ErrorCode::kUnavailable, "cannot make a run directory: {}", std::strerror(errno)
        );
    }
    tree.run_dir_ = pattern;

    std::vector<std::string> words{args.launcher, "serve", "--run-dir", tree.run_dir_};
    // HTTP needs a free port; another tree on this machine may use the default.
    if (std::ranges::find(args.serve, "--port") == args.serve.end()) words.push_back("--no-http");
    words.insert(words.end(), args.serve.begin(), args.serve.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    // This program and the tree's programs are in bin/ of the same build directory.
    const std::string build_dir =
        std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    std::array<int, 2> output{};
    if (::pipe2(output.data(), O_CLOEXEC) != 0) {
        return make_error(ErrorCode::kUnavailable, "no pipe: {}", std::strerror(errno));
    }
    tree.output_fd_ = output[0];
    tree.launcher_ = ::fork();
    if (tree.launcher_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGTERM);
        ::dup2(output[1], STDOUT_FILENO);
        ::setenv("PITSTOP_BUILD", build_dir.c_str(), /*overwrite=*/0);
        ::execv(argv[0], argv.data());
        ::_exit(127);
    }
    ::close(output[1]);
    if (tree.launcher_ < 0) {
        tree.launcher_ = 0;
        return make_error(ErrorCode::kUnavailable, "cannot fork: {}", std::strerror(errno));
    }
    RETURN_IF_ERROR(tree.wait_ready(args.start_timeout));
    return tree;
}

// The first line that the launcher prints reports that the tree is ready.
Result<> Tree::wait_ready(std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    while (Clock::now() < deadline) {
        pollfd entry{.fd = output_fd_, .events = POLLIN, .revents = 0};
        if (::poll(&entry, 1, kPollMs) <= 0) continue;
        std::array<char, 4096> text{};
        const ssize_t size = ::read(output_fd_, text.data(), text.size());
        if (size > 0 && std::memchr(text.data(), '\n', static_cast<std::size_t>(size)) != nullptr) {
            return Ok{};
        }
        if (size > 0 || (size < 0 && errno == EINTR)) continue;
        return make_error(ErrorCode::kUnavailable, "the launcher ended with status {}", stop());
    }
    return make_error(
        ErrorCode::kDeadlineExceeded, "the tree was not ready within {} ms", timeout.count()
    );
}

int Tree::stop() {
    if (launcher_ == 0) return 0;
    int status = 0;
    ::kill(launcher_, SIGTERM);
    const TimePoint deadline = Clock::now() + kStopTimeout;
    while (::waitpid(launcher_, &status, WNOHANG) == 0) {
        if (Clock::now() > deadline) {
            ::kill(launcher_, SIGKILL);
            ::waitpid(launcher_, &status, 0);
            break;
        }
        ::poll(nullptr, 0, kPollMs);
    }
    launcher_ = 0;
    return status_as_shell(status);
}

}  // namespace pitstop::bench
