#include "bus/curve_keys.h"

#include "base/log.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::bus {
namespace {

constexpr std::size_t kKeyChars = 40;
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

bool is_key(std::string_view text) {
    return text.size() == kKeyChars && text.find_first_not_of(kZ85) == text.npos;
}

bool is_name(std::string_view text) {
    constexpr std::string_view kAccepted =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
    return !text.empty() && text.size() <= kKeyNameBytesMax && text.front() != '.' &&
           text.find_first_not_of(kAccepted) == text.npos;
}

Error cannot(const char* what, const std::string& path) {
    return make_error(
        errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied,
        "cannot {} '{}': {}",
        what,
        path,
        std::strerror(errno)
    );
}

struct ReadFile {
    std::string text{};
    struct stat info {};
};

enum class Secret { kNo, kYes };

// Reads the whole file, and no more than kKeyFileBytesMax.
Result<ReadFile> read_file(const std::string& path, Secret secret) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return cannot("read", path);
    ReadFile file;
    if (::fstat(fd, &file.info) != 0 || !S_ISREG(file.info.st_mode)) {
        ::close(fd);
        return make_error(ErrorCode::kInvalidArgument, "'{}' is not a file", path);
    }
    if (secret == Secret::kYes && (file.info.st_mode & 077) != 0) {
        ::close(fd);
        return make_error(
            ErrorCode::kPermissionDenied,
            "'{}' contains a secret key and other users can open it: chmod 600 it",
            path
        );
    }
    char bytes[4096];
    ssize_t num = 0;
    while ((num = ::read(fd, bytes, sizeof bytes)) > 0 && file.text.size() <= kKeyFileBytesMax)
        file.text.append(bytes, static_cast<std::size_t>(num));
    ::close(fd);
    if (num < 0) return cannot("read", path);
    if (file.text.size() > kKeyFileBytesMax) {
        return make_error(
            ErrorCode::kTooLarge, "'{}' has more than {} bytes", path, kKeyFileBytesMax
        );
    }
    return file;
}

// The file's lines "word KEY" as pairs (word, key), without empty lines and comments.
using Lines = std::vector<std::pair<std::string, std::string>>;
Result<Lines> parse_lines(const std::string& path, std::string_view text) {
    Lines lines;
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        constexpr std::string_view kBlank = " \t\r";
        line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
        line = line.substr(0, line.find_last_not_of(kBlank) + 1);
        if (line.empty() || line.front() == '#') continue;
        const std::size_t word_end = std::min(line.find_first_of(kBlank), line.size());
        const std::string_view word = line.substr(0, word_end);
        std::string_view key = line.substr(word_end);
        key.remove_prefix(std::min(key.find_first_not_of(kBlank), key.size()));
        if (!is_name(word) || !is_key(key)) {
            // The error does not quote the line, which may be a secret in the wrong place.
            return make_error(
                ErrorCode::kMalformed,
                "'{}', line {}: expected a name and a key of {} characters (Z85)",
                path,
                number,
                kKeyChars
            );
        }
        lines.emplace_back(word, key);
    }
    return lines;
}

// Returns the keys of these words. Each word must appear exactly once, and no other
// word may appear.
template <std::size_t N>
Result<std::array<std::string, N>> read_secret(
    const std::string& path, const std::array<std::string_view, N>& words
) {
    ASSIGN_OR_RETURN(const ReadFile file, read_file(path, Secret::kYes));
    ASSIGN_OR_RETURN(const Lines lines, parse_lines(path, file.text));
    std::array<std::string, N> keys;
    for (std::size_t i = 0; i < N; ++i) {
        const auto is_it = [&](const auto& line) { return line.first == words[i]; };
        if (lines.size() != N || std::ranges::count_if(lines, is_it) != 1) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': expected {} lines, {}, each with a key",
                path,
                N,
                fmt::join(words, ", ")
            );
        }
        keys[i] = std::ranges::find_if(lines, is_it)->second;
    }
    return keys;
}

// Creates a file (O_EXCL) or replaces the text of an existing one (O_TRUNC). The data is on disk
// before this returns.
Result<> write_file(const std::string& path, const std::string& text, int flags) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0 && errno == EEXIST)
        return make_error(
            ErrorCode::kAlreadyExists, "'{}' exists already; remove it to make a new one", path
        );
    if (fd < 0) return cannot("write", path);
    const bool is_written =
        ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        ::fsync(fd) == 0;
    const int problem = errno;
    ::close(fd);
    errno = problem;
    if (is_written) return Ok{};
    Error error = cannot("write", path);
    if ((flags & O_EXCL) != 0) ::unlink(path.c_str());
    return error;
}

// Replaces the whole list at once, so that no reader sees half of a line.
Result<> replace_file(const std::string& path, const std::string& text) {
    const std::string next = path + ".new";
    RETURN_IF_ERROR(write_file(next, text, O_TRUNC));
    if (::rename(next.c_str(), path.c_str()) != 0) return cannot("replace", path);
    return Ok{};
}

Result<> make_dir(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Ok{};
    return cannot("make", path);
}

// A directory of an older version has no list of nodes; adding the first node creates the list.
constexpr std::string_view kNodeList = "nodes.keys";
constexpr std::array<std::string_view, 3> kLists{"data.keys", "admin.keys", kNodeList};

bool is_let_in(std::string_view list, AllowedAt at) {
    switch (at) {
        case AllowedAt::kDataDoor:
            return list == "data.keys";
        case AllowedAt::kBothDoors:
            return list != kNodeList;
        case AllowedAt::kNodeDoor:
            return list == kNodeList;
    }
    return false;
}

std::string comment_of(std::string_view list) {
    return fmt::format(
        "# {} that may connect to the {} door: a name and a public key per line.\n",
        list == kNodeList ? "Machines" : "Clients",
        list.substr(0, list.find('.'))
    );
}

std::string in(const std::string& dir, std::string_view name) {
    return fmt::format("{}/{}", dir, name);
}

Result<ReadFile> read_list(const std::string& dir, std::string_view list) {
    Result<ReadFile> file = read_file(in(dir, list), Secret::kNo);
    if (file || list != kNodeList || file.error().code != ErrorCode::kNotFound) return file;
    return ReadFile{.text = comment_of(list)};
}

}  // namespace

Result<> check_curve() {
    if (::zmq_has("curve") == 1) return Ok{};
    return Error{
        ErrorCode::kUnsupported, "a tcp door needs CURVE, which this ZeroMQ was built without"};
}

Result<CurveKeyPair> make_key_pair() {
    RETURN_IF_ERROR(check_curve());
    std::array<char, kKeyChars + 1> public_key{};
    std::array<char, kKeyChars + 1> secret_key{};
    if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
        return make_error(
            ErrorCode::kInternal, "cannot make a key pair: {}", ::zmq_strerror(::zmq_errno())
        );
    }
    return CurveKeyPair{public_key.data(), secret_key.data()};
}

Result<CurveKeyPair> read_server_key(const std::string& path) {
    constexpr std::array<std::string_view, 2> kWords{"public", "secret"};
    ASSIGN_OR_RETURN(auto keys, read_secret(path, kWords));
    return CurveKeyPair{std::move(keys[0]), std::move(keys[1])};
}

Result<ClientKey> read_client_key(const std::string& path) {
    constexpr std::array<std::string_view, 3> kWords{"public", "secret", "server"};
    ASSIGN_OR_RETURN(auto keys, read_secret(path, kWords));
    return ClientKey{{std::move(keys[0]), std::move(keys[1])}, std::move(keys[2])};
}

Result<> make_key_dir(const std::string& dir) {
    ASSIGN_OR_RETURN(const CurveKeyPair pair, make_key_pair());
    RETURN_IF_ERROR(make_dir(dir));
    RETURN_IF_ERROR(make_dir(in(dir, "clients")));
    RETURN_IF_ERROR(write_file(
        in(dir, "server.key"),
        fmt::format(
            "# The tree's key pair. Keep it secret.\npublic {}\nsecret {}\n",
            pair.public_key,
            pair.secret_key
        ),
        O_EXCL
    ));
    for (const std::string_view list : kLists) {
        RETURN_IF_ERROR(write_file(in(dir, list), comment_of(list), O_EXCL));
    }
    return Ok{};
}

Result<std::string> add_client_key(const std::string& dir, const std::string& name, AllowedAt at) {
    // A name that looks like a flag is a missing value: --client --admin.
    if (!is_name(name) || name.starts_with('-')) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' cannot be a client's name; accepted are letters, digits and ._-, at most {} "
            "characters, the first neither . nor -",
            name,
            kKeyNameBytesMax
        );
    }
    ASSIGN_OR_RETURN(const CurveKeyPair server, read_server_key(in(dir, "server.key")));
    ASSIGN_OR_RETURN(const CurveKeyPair pair, make_key_pair());
    std::string path = in(dir, fmt::format("clients/{}.key", name));
    RETURN_IF_ERROR(write_file(
        path,
        fmt::format(
            "# The key of the client '{}', and the server key that it trusts. Keep it "
            "secret.\npublic {}\nsecret {}\nserver {}\n",
            name,
            pair.public_key,
            pair.secret_key,
            server.public_key
        ),
        O_EXCL
    ));
    for (const std::string_view list : kLists) {
        if (!is_let_in(list, at)) continue;
        ASSIGN_OR_RETURN(ReadFile file, read_list(dir, list));
        if (!file.text.empty() && file.text.back() != '\n') file.text += '\n';
        file.text += fmt::format("{} {}\n", name, pair.public_key);
        RETURN_IF_ERROR(replace_file(in(dir, list), file.text));
    }
    return path;
}

Result<> remove_client_key(const std::string& dir, const std::string& name) {
    if (!is_name(name))
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is not a client's name; accepted are letters, digits and ._-",
            name
        );
    bool is_found = false;
    for (const std::string_view list : kLists) {
        const std::string path = in(dir, list);
        ASSIGN_OR_RETURN(const ReadFile file, read_list(dir, list));
        std::string kept;
        for (std::string_view rest = file.text; !rest.empty();) {
            const std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
            const std::string_view line = rest.substr(0, end);
            rest.remove_prefix(end);
            const bool is_it = line.starts_with(name) && line.size() > name.size() &&
                               (line[name.size()] == ' ' || line[name.size()] == '\t');
            is_found = is_found || is_it;
            if (!is_it) kept += line;
        }
        if (kept.size() != file.text.size()) RETURN_IF_ERROR(replace_file(path, kept));
    }
    if (is_found) return Ok{};
    return make_error(ErrorCode::kNotFound, "no list in '{1}' has a client '{0}'", name, dir);
}

// ---- the list of a door ----

Result<AllowedKeys> AllowedKeys::open(std::string path) {
    AllowedKeys keys(std::move(path));
    RETURN_IF_ERROR(keys.read());
    return keys;
}

Result<> AllowedKeys::read() {
    names_.clear();
    ASSIGN_OR_RETURN(const ReadFile file, read_file(path_, Secret::kNo));
    read_at_ = file.info;  // a wrong line is logged once, not at each look
    if ((file.info.st_mode & 022) != 0) {
        return make_error(
            ErrorCode::kPermissionDenied, "other users can write to '{}': chmod 600 it", path_
        );
    }
    ASSIGN_OR_RETURN(const Lines lines, parse_lines(path_, file.text));
    if (lines.size() > kAllowedMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' has {} keys; at most {} are accepted",
            path_,
            lines.size(),
            kAllowedMax
        );
    }
    for (const auto& [name, key] : lines) names_.emplace(key, name);
    return Ok{};
}

void AllowedKeys::look() {
    struct stat now {};
    if (::stat(path_.c_str(), &now) == 0 && now.st_ino == read_at_.st_ino &&
        now.st_dev == read_at_.st_dev && now.st_size == read_at_.st_size &&
        now.st_mtim.tv_sec == read_at_.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == read_at_.st_mtim.tv_nsec &&
        now.st_ctim.tv_sec == read_at_.st_ctim.tv_sec &&
        now.st_ctim.tv_nsec == read_at_.st_ctim.tv_nsec) {
        return;
    }
    const Result<> result = read();
    if (result) {
        spdlog::info("read '{}' again: {} clients", path_, names_.size());
    } else {
        spdlog::error("no client is admitted: {}", result.error().message);
    }
}

std::optional<std::string> AllowedKeys::find(std::string_view public_key) {
    look();
    const auto place = names_.find(public_key);
    if (place == names_.end()) return std::nullopt;
    return place->second;
}

bool AllowedKeys::has(TimePoint now, std::string_view public_key) {
    if (now >= next_look_) {
        next_look_ = now + kLookEvery;
        look();
    }
    return names_.contains(public_key);
}

}  // namespace pitstop::bus
