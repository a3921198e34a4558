// From logits to tokens and logprobs.
//
// Each row of logits gets: a draw (kSample) or the score of a given token (kScore), the request's
// top ids and the ids it requested, and if logprobs are wanted the rank of the drawn or given token
// among all. The draw is from the logits after penalties, bias and the mask of a grammar. A logprob
// of an output token comes from the distribution of the request's mode (messages/sampling.h), that
// of a prompt token always from the raw one. A row with a logit that is not finite is neither drawn
// from nor scored: its token is -1, and its part of a result is unchanged (the step's result names
// the row: PlannedStep::not_finite_rows()). If the request's own bans leave nothing to draw, the
// token is -2; if its penalties, bias and temperature make an infinite score of finite logits, it
// is -3.
//
// A request may want more of the top than the op finds, up to the whole vocabulary: such rows are
// downloaded and sorted on the host.
//
// The other rows of a call do not affect any bit of a row (P6).
//
// If each rank has a part of the vocabulary, all ranks take part in every call and know the drawn
// ids; only rank 0 has the numbers. A rank reports 20 bytes per row, and 4 more if an id's rank in
// the vocabulary is wanted (rank_call.h). Rows that need more have their logits gathered to rank 0,
// which draws for all.
//
// A request may want the support of its draws, the ids that each was among (messages/supports.h).
// On the CPU these are read from the rows after the draw; a GPU reports none.
//
// Rows with penalties, bias or a grammar are copied and edited. The copies are a second view of
// logits: the same ops draw and report from both views, with a few calls for all their rows.
//
// Draws stay on the device: their logprobs are computed, and the next step embeds them (sampled()),
// before the host has seen them (kernels/draws.h).
//
// The settings of rows stay on a GPU, too: a call uploads only differences from the last
// (standing_arrays.h), nothing if the same requests continue by a token each. If the rows of a call
// list more than four ids on average, the lists are uploaded whole.
//
// Over 500 lines: with its nested classes Call (sampler_call.h) and RankCall (rank_call.h). Both
// use the sampler's arrays; no other class uses them.
//
// Owns:    the edited copies, the choices, the ids drawn last, the ranks' records, the settings of
//          rows, and the ops' scratch memory.
// Bounded: rows_max rows per call.
//
// On a GPU a call only waits when an op's arrays do not fit besides those in use
// (transfer_bytes()). Such a wait happens at most once per 4 MiB of token counts and biases, or of
// top logits, and once per row that is sorted on the host. On the CPU it never waits: an op is done
// when it returns.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/steps.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/model/standing_arrays.h"
#include "tp_worker/model/step_batch.h"
#include "tp_worker/ranks/communicator.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class Sampler {
  public:
    struct Sizes {
        std::int64_t rows_max = 0;
        std::int64_t vocab_len = 0;  // of all ranks together
        std::int64_t num_slots = 0;  // requests whose draws sampled() has
        int num_ranks = 1;
        Rank rank{};
    };
    struct Args {
        const Device& device;
        Transfers* transfers = nullptr;  // has room for transfer_bytes()
        Sizes sizes{};
        Communicator* communicator = nullptr;  // of the ranks; null for a single rank
        std::int64_t vocab_begin = 0;          // this rank's first id
    };
    // Returns the GPU memory that make() needs.
    [[nodiscard]] static std::int64_t bytes(const kernels::Ops& ops, const Sizes& sizes);
    [[nodiscard]] static std::int64_t transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len);
    static Result<Sampler> make(const Args& args);

    // A call in progress (sampler_call.h).
    class Call;

    // Places the small arrays of a call, without waiting. Row i of the logits, in the device's
    // memory, belongs to rows[i], which outlive the call. The logits need not exist yet, but
    // earlier draws of a request must be known if its next draw depends on them
    // (RequestState::follows_tokens()). REQUIRES: calls are enqueued in the order prepared.
    [[nodiscard]] std::unique_ptr<Call> prepare(
        const RowLogits& logits, std::span<const LogitRow> rows, const RequestSlots& slots
    );
    // REQUIRES: the transfers were sent; the logits are enqueued before. Errors: the
    // communicator's.
    [[nodiscard]] Result<> enqueue(Call& call);

    // Runs a whole call, until it is done. On rank 0 writes the result's entries that the
    // rows name; changes no request. Returns the drawn ids, by row, as note_draws writes
    // them (kernels/draws.h).
    [[nodiscard]] Result<std::vector<TokenId>> run(
        const RowLogits& logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots,
        messages::StepResult* result
    );

    // [num_slots] in the device's memory: what each slot's request drew last, as note_draws writes
    // it (kernels/draws.h). Undefined if it drew nothing.
    [[nodiscard]] const TokenId* sampled() const { return sampled_; }

  private:
    // The ranks' joint work for a call.
    class RankCall;

    // The places of the parts in the memory.
    struct Layout {
        std::int64_t edited = 0;
        std::int64_t model_choices = 0;
        std::int64_t edited_choices = 0;
        std::int64_t num_nonfinite = 0;
        std::int64_t sampled = 0;
        std::int64_t arrivals = 0;
        std::int64_t sample_workspace = 0;
        std::int64_t stats_workspace = 0;
        std::int64_t part_choices = 0;  // with several ranks; so are the members up to all_records
        std::int64_t part_stats = 0;
        std::int64_t noted_ids = 0;
        std::int64_t picks = 0;
        std::int64_t counts = 0;
        std::int64_t records = 0;
        std::int64_t all_records = 0;
        std::int64_t standing = 0;  // on a GPU, after the others
        std::int64_t bytes = 0;     // all parts together
    };
    [[nodiscard]] static std::int64_t standing_bytes(const Sizes& sizes);
    static Layout lay_out(const kernels::Ops& ops, const Sizes& sizes);
    Sampler(const Args& args, Arena memory);

    // A row picks its choice or its given id, and the requested ids.
    static constexpr auto kPicksMax = std::int64_t{1 + messages::kLogprobIdsMax};
    // The average number of picks per row that stay on the device. Room for all picks that rows may
    // list would be megabytes, and few requests list any.
    static constexpr std::int64_t kStandingPicks = 4;
    // Rows share a call of an op up to this many bytes of counts and biases, or of top logits.
    static constexpr std::int64_t kShareBytes = std::int64_t{4} << 20;
    // Waits for work in progress if there is no room for this many bytes of an op's arrays.
    void make_room(std::int64_t transfer_bytes);

    void set_up_ranks(const Layout& layout, const Device& device);

    [[nodiscard]] bool is_split() const { return sizes_.num_ranks > 1; }
    [[nodiscard]] bool is_root() const { return raw(sizes_.rank) == 0; }
    // Returns this rank's ids of each row, without padding.
    [[nodiscard]] View2<float> part_of(const RowLogits& logits) const;

    const kernels::Ops* ops_;
    kernels::Stream stream_;
    Transfers* transfers_;
    Communicator* communicator_;
    Sizes sizes_;
    std::int64_t vocab_len_;
    std::int64_t vocab_begin_;
    Arena memory_;
    View2<float> edited_{};                      // [rows_max, V], on rank 0
    kernels::Choice* model_choices_ = nullptr;   // [rows_max]
    kernels::Choice* edited_choices_ = nullptr;  // [rows_max]
    std::int32_t* num_nonfinite_ = nullptr;      // [rows_max], of this rank's part
    TokenId* sampled_ = nullptr;                 // [num_slots]
    std::uint32_t* arrivals_ = nullptr;          // for sampling, zeros between its calls
    kernels::Workspace sample_workspace_{};
    kernels::Workspace stats_workspace_{};
    // Used with several ranks. All but all_records_ are [rows_max], of this rank's part:
    kernels::Choice* part_choices_ = nullptr;
    kernels::SoftmaxStats* part_stats_ = nullptr;
    TokenId* noted_ids_ = nullptr;  // on rank 0: the ids drawn for all ranks
    kernels::LogitPick* picks_ = nullptr;
    std::int32_t* counts_ = nullptr;
    kernels::RankRecord* records_ = nullptr;
    std::byte* all_records_ = nullptr;  // by rank
    StandingArrays standing_{};
    std::uint32_t num_calls_ = 0;  // modulo 2^32
};

}  // namespace pitstop::tp_worker
