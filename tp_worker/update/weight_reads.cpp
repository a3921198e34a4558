#include "tp_worker/update/weight_reads.h"

#include "base/log.h"
#include "bus/limits.h"
#include "messages/codec.h"
#include "tp_worker/weights/tensor_read.h"
#include "tp_worker/weights/weight_digest.h"

namespace pitstop::tp_worker {
namespace {

constexpr std::string_view kReleased = "the weights are released; resume them first";
constexpr std::string_view kBeingWritten =
    "a direct update writes the live weights; read them when it is committed";

// A reply with a tensor's bytes must fit into a message of the tree, together with the message's
// head. A larger one would end the connection to the scheduler.
constexpr auto kReadBytesMax =
    static_cast<std::int64_t>(bus::kInnerLimits.message_bytes_max) - (std::int64_t{1} << 20);

}  // namespace

std::vector<messages::Frames> WeightReads::read(
    const messages::WorkerReadTensor& order, Live live
) {
    messages::WorkerTensor head;
    head.call = order.call;
    head.rank = engine_.rank();
    head.epoch = engine_.epoch();
    const WeightLayout& layout = engine_.layout();
    const WeightTensor* tensor = layout.find_tied(order.name);
    if (tensor == nullptr || engine_.weights() == nullptr) {
        head.verdict = make_error(
            ErrorCode::kNotFound,
            "'{}' is no tensor of this model; similar names: {}",
            // a partial character is not valid UTF-8
            printable(std::string_view(order.name).substr(0, 256)),
            near_names(layout, order.name)
        );
        return std::vector{encode(head)};
    }
    head.tensor = {
        .name = order.name,
        .dtype = std::string(name_of(tensor->encoding)),
        .shape = tensor->shape};
    if (tensor->whole_bytes() > kReadBytesMax) {
        head.verdict = make_error(
            ErrorCode::kTooLarge,
            "'{}' has {} bytes; tensors of at most {} can be read",
            order.name,
            tensor->whole_bytes(),
            kReadBytesMax
        );
        return std::vector{encode(head)};
    }
    if (live == Live::kBeingWritten) {
        head.verdict = Error{ErrorCode::kFailedPrecondition, std::string(kBeingWritten)};
        return std::vector{encode(head)};
    }
    const Arena& memory = engine_.weights()->live_memory();
    if (background_.offer([&memory, tensor, head]() mutable {
            if (!memory.is_committed()) {  // a release was ordered before the read
                head.verdict = Error{ErrorCode::kFailedPrecondition, std::string(kReleased)};
                return std::vector{encode(head)};
            }
            return read_parts(*tensor, memory, head);
        }))
        return {};
    head.verdict = Background::too_many();
    return std::vector{encode(head)};
}

std::vector<messages::Frames> WeightReads::digest(const messages::WorkerDigest& order, Live live) {
    messages::WorkerDigests answer;
    answer.call = order.call;
    answer.rank = engine_.rank();
    answer.epoch = engine_.epoch();
    if (engine_.weights() == nullptr) return std::vector{encode(answer)};
    if (live == Live::kBeingWritten) {
        answer.verdict = Error{ErrorCode::kFailedPrecondition, std::string(kBeingWritten)};
        return std::vector{encode(answer)};
    }
    // The live copy does not change until this job is done: only a stage writes to copies, and a
    // stage's job would run after this one. So the digest belongs to the epoch named here.
    WeightStore& store = *engine_.weights();
    const bool is_given =
        background_.offer([this, &store, &memory = store.live_memory(), answer]() mutable {
            if (!memory.is_committed()) {  // a release was ordered before the read
                answer.verdict = Error{ErrorCode::kFailedPrecondition, std::string(kReleased)};
                return std::vector{encode(answer)};
            }
            Pacer pacer(pace_);
            const auto rest = [&] { pacer.rest_if_due(); };
            const Result<std::vector<messages::PartDigest>> digests =
                store.digest(memory.data(), kernels::Stream{}, rest);
            if (digests) answer.digests = *digests;
            return std::vector{encode(answer)};
        });
    if (is_given) return {};
    answer.verdict = Background::too_many();
    return std::vector{encode(answer)};
}

}  // namespace pitstop::tp_worker
