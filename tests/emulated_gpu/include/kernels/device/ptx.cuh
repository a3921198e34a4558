// Stands in for kernels/device/ptx.cuh in the emulator: the same functions, written from the PTX
// ISA's descriptions of the instructions (fragments: "Matrix fragments for mma.m16n8k16",
// "ldmatrix"), not from the kernels that use them.
#pragma once

#include "base/bf16.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace pitstop::kernels {

inline std::uint32_t pack_bf16x2(float low, float high) {
    return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
}

inline float exp2_approx(float x) { return std::exp2(x); }

template <class T>
const T* in_global(const T* pointer) {
    return pointer;
}

inline void copy16_async(void* to, const void* from, std::uint32_t src_bytes) {
    emulator::copy_async(to, from, src_bytes);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int kPending>
void wait_copies() {
    emulator::wait_copies(kPending);
}

}  // namespace pitstop::kernels

namespace pitstop::emulator {

struct Fragment {
    std::uint32_t r[4];
};

// Lane l's pointer is row l % 8 of matrix l / 8. Element (row, column) of a matrix is handed to
// lane 4 * row + column / 2, half column % 2; transposed, element (column, row) is.
inline Fragment load_matrices(const char* name, const void* row, bool is_transposed) {
    check_shared(row, 16, 16);
    return warp_instruction<const void*, Fragment>(
        name,
        row,
        [=](const void* const* rows, Fragment* out) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                for (int r = 0; r < 8; ++r) {
                    std::uint16_t elements[8];
                    std::memcpy(elements, rows[matrix * 8 + r], sizeof elements);
                    for (int c = 0; c < 8; ++c) {
                        const int to_row = is_transposed ? c : r;
                        const int to_column = is_transposed ? r : c;
                        const std::uint32_t element = elements[c];
                        out[4 * to_row + to_column / 2].r[matrix] |= element
                                                                     << 16 * (to_column % 2);
                    }
                }
            }
        }
    );
}

}  // namespace pitstop::emulator

namespace pitstop::kernels {

inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
    const emulator::Fragment fragment = emulator::load_matrices("ldmatrix", row, false);
    std::memcpy(r, fragment.r, sizeof r);
}
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
    const emulator::Fragment fragment = emulator::load_matrices("ldmatrix.trans", row, true);
    std::memcpy(r, fragment.r, sizeof r);
}

// The products are exact and summed in double, rounded once: the tensor cores keep fewer bits.
inline void mma_16x8x16(
    float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1
) {
    struct In {
        float d[4];
        std::uint32_t a[4];
        std::uint32_t b[2];
    };
    struct Out {
        float d[4];
    };
    const auto half = [](std::uint32_t pair, int index) {
        return double{to_float(bf16{static_cast<std::uint16_t>(pair >> 16 * index)})};
    };
    In in{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    const Out out =
        emulator::warp_instruction<In, Out>("mma.m16n8k16", in, [&](const In* lanes, Out* outs) {
            double A[16][16];
            double B[16][8];
            for (int lane = 0; lane < 32; ++lane) {
                const int group = lane / 4;
                const int in_group = lane % 4;
                for (int i = 0; i < 8; ++i) {  // element i of A: register i / 2, half i % 2
                    const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
                    const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
                    A[row][column] = half(lanes[lane].a[i / 2], i % 2);
                }
                for (int i = 0; i < 4; ++i) {
                    const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
                    B[row][group] = half(lanes[lane].b[i / 2], i % 2);
                }
            }
            for (int lane = 0; lane < 32; ++lane) {
                for (int i = 0; i < 4; ++i) {
                    const int row = lane / 4 + (i >= 2 ? 8 : 0);
                    const int column = lane % 4 * 2 + (i & 1);
                    double sum = double{lanes[lane].d[i]};
                    for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
                    outs[lane].d[i] = static_cast<float>(sum);
                }
            }
        });
    std::memcpy(d, out.d, sizeof d);
}

inline uint4 load16_streaming(const void* from) {
    emulator::check_aligned(from, 16);
    uint4 pack;
    std::memcpy(&pack, from, sizeof pack);
    return pack;
}

}  // namespace pitstop::kernels
