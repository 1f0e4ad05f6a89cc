// SPDX-License-Identifier: Apache-2.0
// How a CTA reads one row of logits.
#pragma once

#include "cuda/accept_path/row_weight.cuh"
#include "cuda/common/grid_constant.h"
#include "treeattn/accept_path.h"

namespace treeattn::cuda {

// Shared variables of a CTA besides its arrays.
struct RowControl {
  int request;
  int child;
  int id;
  int chunk;
  uint32_t list_count;
  uint32_t bin;
  uint32_t low_key;
  Units before;
  Units inside;
};
static_assert(sizeof(RowControl) <= RowLayout::kChunkSums - RowLayout::kControl);

struct RowShared {
  GridConstant<RowLayout> layout;

  template <class V>
  __device__ __forceinline__ static V* at(int offset) {
    return reinterpret_cast<V*>(shared_memory() + offset);
  }
  __device__ __forceinline__ Units* warp_sums() const { return at<Units>(RowLayout::kWarpSums); }
  __device__ __forceinline__ RowControl* control() const {
    return at<RowControl>(RowLayout::kControl);
  }
  // [num_chunks]
  __device__ __forceinline__ Units* chunk_sums() const { return at<Units>(RowLayout::kChunkSums); }
  // [num_chunks], of the allowed logits
  __device__ __forceinline__ float* chunk_maxima() const { return at<float>(layout.chunk_maxima); }
  // [kNumBins, kBinCopies, 2]
  __device__ __forceinline__ uint32_t* bins() const { return at<uint32_t>(layout.bins); }
  // [kListSize]
  __device__ __forceinline__ uint32_t* list() const { return at<uint32_t>(layout.list); }
  // [layout.num_stashed]
  __device__ __forceinline__ uint4* stash() const { return at<uint4>(layout.stash); }
  // What a kernel has asked for beyond the layout, 16-byte aligned.
  template <class V>
  __device__ __forceinline__ V* behind() const {
    return at<V>(layout.bytes);
  }
};

template <class T>
inline constexpr int kVec = kVecBytes / static_cast<int>(sizeof(T));  // logits in 16 bytes

template <class T>
inline constexpr uint32_t kLowestBits = 0xff800000;  // -inf, twice in 32 bits where T has 16
template <>
inline constexpr uint32_t kLowestBits<BFloat16> = 0xff80ff80;
template <>
inline constexpr uint32_t kLowestBits<Half> = 0xfc00fc00;

// The row as vectors of 16 aligned bytes: `vec` holds ids vec * kVec - shift and the next.
template <class T>
struct Row {
  const T* logits;
  const uint32_t* allowed;  // or nullptr
  int vocab_size;
  int shift;  // ids that the first vector lacks because the row begins within it
  int num_vecs;
  int num_chunks;

  __device__ __forceinline__ Row(const T* logits_, const uint32_t* allowed_, int vocab_size_)
      : logits(logits_), allowed(allowed_), vocab_size(vocab_size_) {
    shift = static_cast<int>(reinterpret_cast<uintptr_t>(logits) % kVecBytes / sizeof(T));
    num_vecs = static_cast<int>((int64_t{vocab_size} + shift + kVec<T> - 1) / kVec<T>);
    num_chunks = (num_vecs + kChunkVecs - 1) / kChunkVecs;
  }

  __device__ __forceinline__ int first_id(int vec) const {
    return static_cast<int>(int64_t{vec} * kVec<T> - shift);
  }

  // From memory; ids outside the row are -inf and not read.
  __device__ __forceinline__ uint4 load(int vec) const {
    const int id = first_id(vec);
    if (vec < num_vecs && id >= 0 && id <= vocab_size - kVec<T>) return load_16(logits + id);
    uint4 bytes = make_uint4(kLowestBits<T>, kLowestBits<T>, kLowestBits<T>, kLowestBits<T>);
    if (vec < num_vecs) {
      T elements[kVec<T>];
      __builtin_memcpy(elements, &bytes, kVecBytes);
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) {
        if (id + i >= 0 && id + i < vocab_size) elements[i] = load_global(logits + id + i);
      }
      __builtin_memcpy(&bytes, elements, kVecBytes);
    }
    return bytes;
  }

  // Bit i: id first_id(vec) + i is allowed, or outside the row.
  __device__ __forceinline__ uint32_t allowed_bits(int vec) const {
    if (allowed == nullptr || vec >= num_vecs) return ~0u;
    const int id = first_id(vec);
    const int first = id < 0 ? 0 : id;
    const int last = vocab_size - id < kVec<T> ? vocab_size - 1 : id + kVec<T> - 1;
    uint64_t bits = load_global(allowed + first / 32);
    if (last / 32 != first / 32) bits |= uint64_t{load_global(allowed + last / 32)} << 32;
    bits >>= first % 32;
    return static_cast<uint32_t>(id < 0 ? bits << -id : bits);
  }
};

// `row_idx` is a row of the batch.
template <class T>
__device__ __forceinline__ Row<T> row_of(const AcceptPathParams& p, int64_t row_idx) {
  return Row<T>(static_cast<const T*>(p.logits) + row_idx * p.stride_logits,
                p.allowed != nullptr ? p.allowed + row_idx * p.stride_allowed : nullptr,
                p.vocab_size);
}

enum class Pass {
  kFirst,  // fills the stash
  kAgain,  // takes from the stash what is there
};

template <Pass kPass, class T>
__device__ __forceinline__ uint4 load_vec(const Row<T>& row, const RowShared& s, int vec) {
  if (kPass == Pass::kAgain && vec < s.layout.num_stashed) return s.stash()[vec];
  const uint4 bytes = row.load(vec);
  if (kPass == Pass::kFirst && vec < s.layout.num_stashed) s.stash()[vec] = bytes;
  return bytes;
}

// Calls f(x, id) for the logits of one vector, ascending; x is -inf where the id is excluded.
template <class T, class F>
__device__ __forceinline__ void for_each_in_vec(const Row<T>& row, uint4 bytes, int vec, F&& f) {
  T elements[kVec<T>];
  __builtin_memcpy(elements, &bytes, kVecBytes);
  const uint32_t allowed = row.allowed_bits(vec);
  const int id = row.first_id(vec);
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) {
    f(allowed >> i & 1 ? to_float(elements[i]) : -kInfinity, id + i);
  }
}

// Calls f(x, id) for the logits that this lane takes of a warp's chunk, ascending. The first pass
// has all vectors on the way before it looks at one; later ones wait less and leave registers to f.
template <Pass kPass, class T, class F>
__device__ __forceinline__ void for_each_in_chunk(const Row<T>& row, const RowShared& s, int chunk,
                                                  F&& f) {
  constexpr int kAhead = kPass == Pass::kFirst ? kVecsPerLane : kVecsPerLane / 2;
  const int first = chunk * kChunkVecs + lane_of_thread();
#pragma unroll 1
  for (int begin = 0; begin < kVecsPerLane; begin += kAhead) {
    uint4 bytes[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      bytes[i] = load_vec<kPass>(row, s, first + (begin + i) * kWarpSize);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      for_each_in_vec(row, bytes[i], first + (begin + i) * kWarpSize, f);
    }
  }
}

}  // namespace treeattn::cuda
