// The stream that an op runs on.
#pragma once

namespace pitstop::kernels {

// Where an op runs. On the CPU: a ThreadPool of the caller's (thread_pool.h), and the op is done
// when it returns; null runs it on the calling thread alone, with the same bits. On CUDA: a
// cudaStream_t, never null, and the op is only enqueued.
struct Stream {
    void* handle = nullptr;
};

}  // namespace pitstop::kernels
