// CUDA's runtime: GPUs that access each other's memory. Source: CUDA Runtime API, "Peer Device
// Memory Access".
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/contexts.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

using namespace pitstop::emulator;

namespace {

bool is_gpu(int gpu) { return gpu >= 0 && gpu < settings().num_gpus; }

}  // namespace

extern "C" {

// A GPU is not its own peer.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    PITSTOP_ENTER_WITHOUT_CONTEXT();
    if (!is_gpu(device) || !is_gpu(peer)) return told(cudaErrorInvalidDevice);
    *can = device != peer && settings().has_peer_access ? 1 : 0;
    return cudaSuccess;
}

// The current GPU may then access the peer's memory; the other direction needs its own call.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    PITSTOP_ENTER();
    if (flags != 0) return told(cudaErrorInvalidValue);
    if (!is_gpu(peer) || peer == current_gpu()) return told(cudaErrorInvalidDevice);
    if (!settings().has_peer_access) return told(cudaErrorPeerAccessUnsupported);
    if (!open_context(peer)) return told(cudaErrorMemoryAllocation);
    return told(enable_peer(current_gpu(), peer) ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    PITSTOP_ENTER();
    if (!is_gpu(peer)) return told(cudaErrorInvalidDevice);
    return told(disable_peer(current_gpu(), peer) ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}

}  // extern "C"
