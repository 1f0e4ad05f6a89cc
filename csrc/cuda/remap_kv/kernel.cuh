// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/remap_kv/claims.cuh"
#include "cuda/remap_kv/move_rows.cuh"
#include "cuda/remap_kv/order_moves.cuh"
#include "cuda/remap_kv/plan_request.cuh"
#include "cuda/remap_kv/roles.cuh"

namespace treeattn::cuda {

// Checks a request and claims its blocks; one warp.
__device__ __forceinline__ RequestState start_request(const RemapKvParams& p,
                                                      const RemapWorkspace& w, int request) {
  const RequestState state = state_of(p, request);
  if (threadIdx.x % kWarpSize == 0) {
    store_global(w.states + request, static_cast<int>(state));
    store_global(w.conflicts + request, 0);
  }
  if (state == RequestState::kMoves) claim_blocks(p, w, request);
  return state;
}

__device__ __forceinline__ bool is_moving(const RemapWorkspace& w, int request) {
  return load_global(w.states + request) == static_cast<int>(RequestState::kMoves);
}

// All requests are this CTA's, kRemapWarps at most; their claims are made.
__device__ __forceinline__ void check_all(const RemapKvParams& p, const RemapWorkspace& w) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (warp < p.num_requests && is_moving(w, warp)) check_claims(p, w, warp);
  // Warps without a request of their own help to look through the committed blocks.
  const int helped = warp % p.num_requests;
  if (!is_moving(w, helped)) return;
  const int num_warps = (kRemapWarps - helped + p.num_requests - 1) / p.num_requests;
  check_committed(p, w, helped, warp / p.num_requests * kWarpSize + threadIdx.x % kWarpSize,
                  num_warps * kWarpSize);
}

// Claims the blocks of kRemapWarps requests, then plans their moves.
__device__ __forceinline__ void claim_and_plan(const RemapKvParams& p, const RemapWorkspace& w,
                                               const RemapHeader& header, const RemapRoles& roles,
                                               int claimer) {
  const int request = claimer * kRemapWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  RequestState state = RequestState::kStays;
  if (request < p.num_requests) state = start_request(p, w, request);
  __syncthreads();  // this CTA's claims are made
  if (roles.num_checkers > 0 && threadIdx.x == 0) fetch_add_acq_rel(header.claimed(), 1);
  if (request < p.num_requests) plan_request(p, w, request, state);
  if (roles.num_checkers == 0) check_all(p, w);
}

// Looks for requests that list each other's blocks, through one part of one request's table.
__device__ __forceinline__ void check_part(const RemapKvParams& p, const RemapWorkspace& w,
                                           const RemapHeader& header, const RemapRoles& roles,
                                           int checker) {
  wait_for(header.claimed(), roles.num_claimers);
  const int request = checker / roles.checkers_per_request;
  const int part = checker % roles.checkers_per_request;
  if (!is_moving(w, request)) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (part == 0 && thread < kWarpSize) check_claims(p, w, request);
  check_committed(p, w, request, part * kRemapThreads + thread,
                  roles.checkers_per_request * kRemapThreads);
}

// The whole remap_kv in one launch. CTAs take tickets as they start, and a ticket, never blockIdx,
// says what its CTA does:
//   claimers  make the claims of their requests and announce them (claimed), then plan the moves of
//             these requests; they read the tables and the accepted paths
//   checkers  wait until all claimers have announced their claims, then look for claims that clash.
//             Small batches have none: their one claimer checks
//   movers    wait until the plan is complete (planned); they read the workspace alone, and write
//             the planes, block_table, moved and status
// The last claimer or checker to be done (arrived) orders the moves where they cross, and sets
// `planned`.
//
// Why that ends: a CTA waits for lower tickets only. Who holds a lower ticket has started, so it
// runs and needs no room that a waiting CTA takes; claimers wait for nobody and so finish, then
// checkers finish, whose last one releases the movers. This needs neither an order in which CTAs
// start nor that any two run at once.
//
// Why it is seen: whoever announces does so in one thread, after a barrier of its CTA, with an
// add or store that releases; whoever needs it acquires in one thread, before a barrier of its own.
// block_table and status are written by movers, after everyone who reads them has arrived.
//
// Grid: roles.num_planners() + num_requests * movers_per_request CTAs.
template <int kPlanes>
__global__ __launch_bounds__(kRemapThreads, 2) void remap_kv_kernel(
    const __grid_constant__ RemapKvParams p, int32_t* const workspace, const RemapHeader header,
    const __grid_constant__ RemapRoles roles, const __grid_constant__ MovePlanes<kPlanes> batch) {
  RemapShared& s = *reinterpret_cast<RemapShared*>(shared_memory());
  const RemapWorkspace w(workspace, p.num_requests, p.path_width);
  const RemapTicket ticket = take_ticket(header, s);
  if (ticket.number >= roles.num_planners()) {
    wait_for(header.planned(), ticket.planned);
    move_rows(p, w, batch, ticket.number - roles.num_planners(), roles.movers_per_request);
    return;
  }
  if (ticket.number < roles.num_claimers) {
    claim_and_plan(p, w, header, roles, ticket.number);
  } else {
    check_part(p, w, header, roles, ticket.number - roles.num_claimers);
  }
  if (arrive(header.arrived(), s) != roles.num_planners() - 1) return;
  order_moves(p, w);
  __syncthreads();  // the plan is complete
  if (threadIdx.x == 0) {
    store_global(header.claimed(), 0);  // checkers, who read it, have all arrived
    store_global(header.arrived(), 0);
    store_release(header.planned(), ticket.planned);
  }
}

}  // namespace treeattn::cuda
