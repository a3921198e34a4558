// Causal attention of a ragged batch over paged KV, with grouped query heads and a sliding
// window. Row r has new tokens q_starts[r] .. q_starts[r+1], the last of its kv_lens[r] tokens;
// the keys and values of all kv_lens[r] tokens, new ones included, are in its pages already
// (rope.h wrote them).
//
//   token t of row r has position p = kv_lens[r] - (q_starts[r+1] - t)
//   o[t, h] = sum_j softmax_j(scale * q[t, h] . key[j, g]) value[j, g],   g = h / (Q / K)
//   over positions j with p - window < j <= p
//
//   q, out    [T, Q*D]  fp32 or bf16, independently; kv has the dtype of q. D <= kHeadDimMax
//   pages     row r's page i, pages[page_starts[r] + i], has positions i*P .. (i+1)*P
//
// The bits of o[t, h] depend only on q[t, h] and on keys and values 0..p. They do not depend on the
// page size, on how the prompt was cut into chunks, on other rows, or on the number of threads
// (P6). Keys are processed in segments of kSegmentKeys, and within these in blocks of kBlockKeys,
// both by absolute position. Each segment is an online softmax of its own (Milakov and Gimelshein
// 2018, arXiv:1805.02867); segments are merged in ascending order (the split of Flash-Decoding).
// Scores and sums are fp32. For fp32 keys and values, the probabilities in the second product are
// fp32, too. For bf16 ones, the second product processes pairs of keys, and each probability is
// rounded to bf16 (FlashAttention's choice; their sum is not rounded). Keys outside the window or
// after p are never read.
#pragma once

#include "kernels/kv_cache.h"
#include "kernels/tensor.h"

#include <limits>

namespace pitstop::kernels {

inline constexpr std::int32_t kNoWindow = std::numeric_limits<std::int32_t>::max();

struct AttentionArgs {
    static constexpr std::int32_t kBlockKeys = 64;
    static constexpr std::int32_t kSegmentKeys = 256;
    static constexpr std::int32_t kHeadDimMax = 256;
    static constexpr std::int64_t kArrivals = 4096;

    ConstActView q{};  // [T, Q*D]
    ActView out{};     // [T, Q*D]
    KvCache kv{};
    std::int32_t num_q_heads = 0;               // Q, of this rank; a multiple of kv.num_kv_heads
    std::int32_t num_rows = 0;                  // R
    const std::int32_t* q_starts = nullptr;     // [R + 1], ascending from 0 to T
    const std::int32_t* kv_lens = nullptr;      // [R], >= the row's new tokens
    const PageId* pages = nullptr;              // all rows' pages
    const std::int32_t* page_starts = nullptr;  // [R], row r's first entry in `pages`
    std::int32_t kv_len_max = 0;        // >= every kv_lens; no launch on a GPU depends on it
    std::int32_t q_len_max = 0;         // >= every row's new tokens; 0: unknown
    std::int32_t window = kNoWindow;    // >= 1; visible keys, including the token's own
    float scale = 0.f;                  // usually 1 / sqrt(D)
    Workspace workspace{};              // a smaller one costs speed, never bits
    std::uint32_t* arrivals = nullptr;  // [kArrivals]; for a GPU, see attention_cuda()
    Stream stream{};
};

struct AttentionShape {
    std::int64_t num_tokens = 0;   // at most T
    std::int32_t num_q_heads = 0;  // Q
    std::int32_t head_dim = 0;     // D
    std::int32_t kv_len_max = 0;
};

void check(const AttentionArgs& args);
void attention_ref(const AttentionArgs& args);
// A GPU's launches depend on R, T, q_len_max, the shapes of q and KV and the size of the workspace,
// not on kv_lens, kv_len_max or the pages: the device cuts the rows with one new token into equal
// shares of all their keys. So a captured call is valid for any lengths. `arrivals` counts
// completed shares: zeros before the first call, zeros after each call; calls that may overlap need
// arrays of their own. If null, rows with one new token use the prefill kernel, which does not
// split them.
void attention_cuda(const AttentionArgs& args);
// The bits do not depend on the batch: every row has segments of kSegmentKeys, and prefill merges
// its sums at the same keys as decode. attention_cuda() guarantees that order only for an fp32
// cache; otherwise its split depends on the batch.
void attention_cuda_deterministic(const AttentionArgs& args);

// On the CPU, the workspace lets several threads share one token's keys. Bounded by
// kAttentionWorkspaceMax.
inline constexpr std::int64_t kAttentionWorkspaceMax = std::int64_t{64} << 20;
[[nodiscard]] std::int64_t attention_workspace_bytes(const AttentionShape& shape);
// On CUDA, the workspace has the partial results of decode rows. The size of the workspace is for
// the opened device.
inline constexpr std::int64_t kAttentionCudaWorkspaceMax = std::int64_t{256} << 20;
[[nodiscard]] std::int64_t attention_cuda_workspace_bytes(const AttentionShape& shape);

}  // namespace pitstop::kernels
