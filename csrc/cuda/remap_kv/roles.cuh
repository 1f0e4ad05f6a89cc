// SPDX-License-Identifier: Apache-2.0
// Which part of the work a CTA does, and how it learns that others have done theirs.
#pragma once

#include "cuda/common/plan_work.h"
#include "cuda/remap_kv/workspace.cuh"

namespace treeattn::cuda {

// How many CTAs do what, in the order of their tickets.
struct RemapRoles {
  int num_claimers;  // kRemapWarps requests each, one warp per request
  int num_checkers;  // checkers_per_request for each request; 0: the one claimer checks as well
  int checkers_per_request;
  int movers_per_request;

  __host__ __device__ int num_planners() const { return num_claimers + num_checkers; }
};

// The four counters of a plan that outlive a launch (PlanWork::remap_header). Between launches
// `claimed` and `arrived` are 0, the count of tickets is 0, and its top bit, the turn, equals
// `planned`. So a launch needs no counter of who has left: the last ticket hands the count to the
// next launch with the turn changed, and CTAs of this one know by their own ticket which value of
// `planned` they wait for.
struct RemapHeader {
  static constexpr unsigned kTurnBit = 1u << 31;

  int32_t* at;

  __device__ __forceinline__ unsigned* tickets() const { return reinterpret_cast<unsigned*>(at); }
  __device__ __forceinline__ int* claimed() const { return at + 1; }  // claimers
  __device__ __forceinline__ int* arrived() const { return at + 2; }  // claimers and checkers
  __device__ __forceinline__ int* planned() const { return at + 3; }
};
static_assert(kRemapHeaderSize == 4);

struct RemapTicket {
  int number;
  int planned;  // what header.planned() becomes in this launch
};

struct RemapShared {
  unsigned ticket;
  int num_before;
};

__device__ __forceinline__ RemapTicket take_ticket(const RemapHeader& header, RemapShared& s) {
  if (threadIdx.x == 0) {
    const unsigned ticket = atomicAdd(header.tickets(), 1u);
    const unsigned turn = ticket & RemapHeader::kTurnBit;
    if (ticket - turn == gridDim.x - 1) {
      atomicExch(header.tickets(), turn ^ RemapHeader::kTurnBit);
    }
    s.ticket = ticket;
  }
  __syncthreads();  // the ticket is known
  return {.number = static_cast<int>(s.ticket & ~RemapHeader::kTurnBit),
          .planned = (s.ticket & RemapHeader::kTurnBit) == 0 ? 1 : 0};
}

// Announces what all threads of the CTA have done. Returns how many CTAs did so before: whoever is
// last sees what all have done.
__device__ __forceinline__ int arrive(int* counter, RemapShared& s) {
  __syncthreads();  // this CTA's part is done
  if (threadIdx.x == 0) s.num_before = fetch_add_acq_rel(counter, 1);
  __syncthreads();  // who came before is known, and seen by all threads
  return s.num_before;
}

// All threads see what was done before `flag` came to `value`.
__device__ __forceinline__ void wait_for(const int* flag, int value) {
  if (threadIdx.x == 0) wait_until_equal(flag, value);
  __syncthreads();  // the flag is seen by one, what it announces by all
}

}  // namespace treeattn::cuda
