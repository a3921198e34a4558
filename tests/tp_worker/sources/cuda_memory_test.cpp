// The content of PyTorch's storage handles of GPU memory, and descriptors taken from a process. The
// bytes of version 2 are those of tests/data/pickle/b_ipc_handle_v2e_posix.pkl.
#include "tp_worker/sources/cuda_memory.h"

#include "tp_worker/sources/peer_descriptors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

std::string bytes_of(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

const std::string kHeader =
    "9210000000000000"
    "0000400100000000"
    "0300000000000000";
const std::string kDescriptors =
    "47000000"
    "48000000"
    "49000000";

TEST(CudaMemory, ARunOfAnExpandableSegmentIsReadAsEachVersionWritesIt) {
    for (const std::string& handle :
         {"0165" + kHeader + kDescriptors,
          "0265" + kHeader + kDescriptors,
          "0365" + kHeader + "0100000000000000" + kDescriptors}) {
        SCOPED_TRACE(handle);
        ASSERT_TRUE(is_segment_run(bytes_of(handle)));
        const Result<SegmentRun> run = read_segment_run(bytes_of(handle));
        ASSERT_TRUE(run) << run.error().message;
        EXPECT_EQ(run->pid, 4242);
        EXPECT_EQ(run->chunk_bytes, std::int64_t{20} << 20);
        EXPECT_EQ(run->fds, (std::vector<int>{71, 72, 73}));
    }
}

// 64 bytes are always a handle of CUDA's, whatever their second byte is.
TEST(CudaMemory, AHandleOfBefore25IsNoRun) {
    EXPECT_FALSE(is_segment_run(std::string(64, 'e')));
    EXPECT_FALSE(is_segment_run(""));
    EXPECT_FALSE(is_segment_run("e"));
}

TEST(CudaMemory, EveryOtherLengthAndSizeIsRefused) {
    const std::string whole = bytes_of("0365" + kHeader + "0100000000000000" + kDescriptors);
    for (std::size_t size = 2; size < whole.size(); ++size) {
        const Result<SegmentRun> run = read_segment_run(whole.substr(0, size));
        EXPECT_FALSE(run) << size;
    }
    EXPECT_FALSE(read_segment_run(whole + '\0'));
    for (const std::string num : {"0000000000000000", "0400000000000000", "ffffffffffffffff"}) {
        const std::string header =
            "9210000000000000"
            "0000400100000000" +
            num;
        const Result<SegmentRun> run = read_segment_run(bytes_of("0265" + header + kDescriptors));
        ASSERT_FALSE(run) << num;
        EXPECT_EQ(run.error().code, ErrorCode::kInvalidArgument) << run.error().message;
    }
    for (const std::string size : {"0000000000000000", "ffffffffffffff7f", "ffffffffffffffff"}) {
        const std::string header = "9210000000000000" + size + "0300000000000000";
        const Result<SegmentRun> run = read_segment_run(bytes_of("0265" + header + kDescriptors));
        ASSERT_FALSE(run) << size;
        EXPECT_EQ(run.error().code, ErrorCode::kInvalidArgument) << run.error().message;
    }
}

TEST(CudaMemory, FabricHandlesAndNewVersionsAreRefusedByName) {
    const std::string fabric(std::size_t{3} * 64, 'x');
    for (const std::string& header : {"0265" + kHeader, "0365" + kHeader + "0200000000000000"}) {
        const Result<SegmentRun> run = read_segment_run(bytes_of(header) + fabric);
        ASSERT_FALSE(run);
        EXPECT_EQ(run.error().code, ErrorCode::kUnsupported);
        EXPECT_NE(run.error().message.find("by fabric handles"), std::string::npos);
    }
    const Result<SegmentRun> later =
        read_segment_run(bytes_of("0465" + kHeader + "0100000000000000" + kDescriptors));
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(later.error().message.find("version 4"), std::string::npos);
}

TEST(PeerDescriptors, ADescriptorOfAProcessIsTakenByItsNumber) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe(ends), 0);
    const Result<PeerDescriptors> self = PeerDescriptors::open(::getpid());
    ASSERT_TRUE(self) << self.error().message;
    EXPECT_FALSE(self->has_ended());
    const Result<int> taken = self->duplicate(ends[1]);
    ASSERT_TRUE(taken) << taken.error().message;
    ::close(ends[1]);
    ASSERT_EQ(::write(*taken, "x", 1), 1);
    ::close(*taken);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
    const Result<int> closed = self->duplicate(ends[1]);
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().code, ErrorCode::kUnavailable);
}

TEST(PeerDescriptors, AProcessThatHasEndedIsSeenToHave) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        char byte = 0;
        ::close(ends[1]);
        _exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes its end
    }
    const Result<PeerDescriptors> peer = PeerDescriptors::open(child);
    ASSERT_TRUE(peer) << peer.error().message;
    EXPECT_FALSE(peer->has_ended());
    ::close(ends[1]);
    ::close(ends[0]);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(peer->has_ended());
    EXPECT_EQ(peer->duplicate(0).error().code, ErrorCode::kUnavailable);
    const Result<PeerDescriptors> gone = PeerDescriptors::open(child);
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(gone.error().message.find("has ended"), std::string::npos);
    EXPECT_EQ(PeerDescriptors::open(0).error().code, ErrorCode::kInvalidArgument);
}

// A child process of another user requests a descriptor of root's process.
TEST(PeerDescriptors, WithoutPermissionTheErrorSaysWhatWouldPermitIt) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
        constexpr uid_t kNobody = 65534;
        if (::setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
        const Result<PeerDescriptors> peer = PeerDescriptors::open(parent);
        if (!peer) _exit(2);
        const Result<int> taken = peer->duplicate(0);
        if (taken || taken.error().code != ErrorCode::kPermissionDenied) _exit(3);
        const std::string& said = taken.error().message;
        const auto size = static_cast<ssize_t>(said.size());
        _exit(::write(ends[1], said.data(), said.size()) == size ? 0 : 4);
    }
    ::close(ends[1]);
    char said[1024] = {};
    EXPECT_GT(::read(ends[0], said, sizeof said - 1), 0);
    ::close(ends[0]);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_NE(std::strstr(said, "kernel.yama.ptrace_scope=0"), nullptr) << said;
    EXPECT_NE(std::strstr(said, "CAP_SYS_PTRACE"), nullptr) << said;
}

}  // namespace
}  // namespace pitstop::tp_worker
