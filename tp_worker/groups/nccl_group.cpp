#include "tp_worker/groups/nccl_group.h"

#include "pickle/reader.h"
#include "tp_worker/groups/tcp_store.h"

#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kUniqueIdBytes = 128;
constexpr std::size_t kPickledIdBytesMax = 4096;
constexpr std::string_view kCountKey = "init/";  // the one key without a leading slash
constexpr std::string_view kVllmKey = "/broadcast_from/0/0";

// PrefixStore(G), then PrefixStore(G/) and PrefixStore(cuda/); the group's first communicator.
std::string sglang_key(const std::string& group) {
    return fmt::format("/{}/{}//cuda//0", group, group);
}

Error needs_gpu(std::string_view id_from) {
    return make_error(
        ErrorCode::kUnsupported,
        "the NCCL group's unique id came ({}), but this worker computes on the CPU and has no "
        "NCCL; "
        "use backend host",
        id_from
    );
}

Result<std::string> id_of_pickle(const std::string& value) {
    ASSIGN_OR_RETURN(
        const pickle::Document document,
        pickle::read(std::as_bytes(std::span(value)), pickle::Channel::kNcclId)
    );
    const pickle::Node& root = document.root();
    if (root.kind != pickle::Kind::kRecord || root.global != pickle::Global::kNcclUniqueId)
        return make_error(ErrorCode::kMalformed, "the store's value is no pickled ncclUniqueId");
    return document.child(root, 0).text;
}

class NcclGroup : public BroadcastGroup {
  public:
    NcclGroup(messages::GroupSpec spec, TcpStore store)
        : spec_(std::move(spec)), store_(std::move(store)) {}

    Result<> receive(std::span<std::byte>, const Patience& patience) override {
        ASSIGN_OR_RETURN(
            const std::string id, store_.wait_get(sglang_key(spec_.group), kUniqueIdBytes, patience)
        );
        if (id.size() != kUniqueIdBytes) {
            return make_error(
                ErrorCode::kMalformed,
                "the group's unique id has {} bytes; NCCL's has {}",
                id.size(),
                kUniqueIdBytes
            );
        }
        return needs_gpu("torch's store");
    }
    // A communicator says so only to who receives.
    [[nodiscard]] bool is_over() const override { return false; }
    void refuse(const std::string&) override {}  // NCCL has no words for it; the trainer sees us go

  private:
    messages::GroupSpec spec_;
    TcpStore store_;
};

}  // namespace

Result<std::shared_ptr<BroadcastGroup>> join_nccl_group(
    const messages::GroupSpec& spec, [[maybe_unused]] std::int64_t rank, const Patience& patience
) {
    if (spec.rendezvous == messages::Rendezvous::kDirect) return needs_gpu("in the call");
    const StoreVersion version =
        spec.store_version == 1 ? StoreVersion::kTorch1 : StoreVersion::kTorch2;
    ASSIGN_OR_RETURN(TcpStore store, TcpStore::connect(spec.address, spec.port, version, patience));
    // The trainer's constructor returns when everybody has counted itself in, exactly once.
    ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t count, store.add(kCountKey, 1, patience));
    if (spec.rendezvous == messages::Rendezvous::kSglang) {
        return std::shared_ptr<BroadcastGroup>(std::make_shared<NcclGroup>(spec, std::move(store)));
    }
    ASSIGN_OR_RETURN(
        const std::string value, store.wait_get(kVllmKey, kPickledIdBytesMax, patience)
    );
    ASSIGN_OR_RETURN([[maybe_unused]] const std::string id, id_of_pickle(value));
    return needs_gpu("torch's store");
}

}  // namespace pitstop::tp_worker
