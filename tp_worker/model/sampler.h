// From logits to tokens and logprobs, on rank 0.
//
// Of each row of logits: a draw (kSample) or the score of a given token (kScore), the request's top
// ids and the ids it asked for, and where logprobs are wanted the rank of the drawn or given token
// among all. The draw is from the logits after penalties and bias; a logprob of
// an output token comes from the distribution that the request's mode names
// (messages/sampling.h), of a prompt token always from the raw one. A row with a logit that is
// not finite is not drawn from: its token is -1, its logprobs are 0, and it is counted. Where the
// request's own bans leave nothing to draw the token is -2.
//
// A request may want the top of more than the op finds, up to the whole vocabulary: such rows come
// to the host and are sorted there.
//
// Which rows share a call decides no bit of any of them (P6).
//
// Rows with penalties or bias are copied and edited, and are one more view of logits from then on:
// both views are drawn from and reported from by the same ops, a few calls for all their rows.
//
// Owns:    the edited copies, and the ops' scratch memory. Nothing of a call outlives it.
// Bounded: rows_max rows a call.
//
// On a GPU a call waits for the device twice, for the choices and then for the logprobs that depend
// on them; and once more whenever an op's arrays do not fit beside those under way
// (transfer_bytes()): at most once for each 4 MiB of token counts and biases, or of top logits, for
// each row that is sorted on the host, and for each view's logprobs. On the CPU it never waits: an
// op is done when it returns.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/steps.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/model/step_batch.h"

#include <cstdint>
#include <span>

namespace pitstop::tp_worker {

class Sampler {
  public:
    struct Args {
        const Device& device;
        Transfers* transfers = nullptr;  // with room for transfer_bytes()
        std::int64_t rows_max = 0;
        std::int64_t vocab_len = 0;
    };
    // What make() takes of the device's memory.
    [[nodiscard]] static std::int64_t bytes(
        const kernels::Ops& ops, std::int64_t rows_max, std::int64_t vocab_len
    );
    [[nodiscard]] static std::int64_t transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len);
    static Result<Sampler> make(const Args& args);

    // Row i of `logits` [n, V], in the device's memory, belongs to rows[i]. Writes the result's
    // entries that the rows name; changes no request.
    void run(
        View2<float> logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots,
        messages::StepResult* result
    );

  private:
    Sampler(const Args& args, Arena memory);

    class Call;
    // Waits for what is under way if an op's arrays of so many bytes do not fit beside it.
    void make_room(std::int64_t transfer_bytes);

    const kernels::Ops* ops_;
    kernels::Stream stream_;
    Transfers* transfers_;
    std::int64_t vocab_len_;
    Arena memory_;
    View2<float> edited_{};  // [rows_max, V]
    kernels::Workspace sample_workspace_{};
    kernels::Workspace stats_workspace_{};
};

}  // namespace pitstop::tp_worker
