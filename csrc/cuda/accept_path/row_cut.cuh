// SPDX-License-Identifier: Apache-2.0
// Where a row that is ranked (larger logit first, then lower id) is cut off, without sorting it.
#pragma once

#include "cuda/accept_path/row.cuh"

namespace treeattn::cuda {

// What stays: every key above `key`, and of those that equal it the first `num_ties` ids.
struct Cut {
  static constexpr Units kAllTies = ~Units{0};

  uint32_t key;
  Units num_ties;

  // The shorter of two such prefixes.
  __device__ __forceinline__ static Cut shorter(Cut a, Cut b) {
    if (a.key != b.key) return a.key > b.key ? a : b;
    return a.num_ties < b.num_ties ? a : b;
  }
};

// Counts ids, as Weigh weighs them.
struct CountIds {
  __device__ __forceinline__ Units operator()(float) const { return 1; }
};
struct WeighIds {
  Weigh weigh;
  __device__ __forceinline__ Units operator()(float x) const { return weigh.units(weigh(x)); }
};

// Adds to a 64-bit sum by its halves: the carry is seen by whoever causes it.
__device__ __forceinline__ void add_units(uint32_t* halves, Units units) {
  const uint32_t low = static_cast<uint32_t>(units);
  uint32_t high = static_cast<uint32_t>(units >> 32);
  if (low != 0 && atomicAdd(halves, low) + low < low) ++high;
  if (high != 0) atomicAdd(halves + 1, high);
}

// A search keeps the keys of its range [low, high] that some pass has met, when they are few.
struct KeyRange {
  uint32_t low, high;
  int shift;  // of a key's distance from `high`, to its bin

  __device__ __forceinline__ bool holds(uint32_t key) const { return key >= low && key <= high; }
};

template <class Measure>
__device__ __forceinline__ void add_to_bin(const RowShared& s, const KeyRange& range, uint32_t key,
                                           Units measure) {
  const uint32_t bin = (range.high - key) >> range.shift;
  const int copy = lane_of_thread() % kBinCopies;
  add_units(s.bins() + 2 * (bin * kBinCopies + copy), measure);
}

// Sums the measures of all ids of the row in the range by bin; keeps the keys where they are few.
template <class T, class Measure>
__device__ __forceinline__ void bin_row(const Row<T>& row, const RowShared& s,
                                        const KeyRange& range, const Measure& measure) {
  for (int chunk = warp_of_thread(); chunk < row.num_chunks; chunk += kRowWarps) {
    if (key_of<T>(s.chunk_maxima()[chunk]) < range.low) continue;
    for_each_in_chunk<Pass::kAgain>(row, s, chunk, [&](float x, int) {
      const uint32_t key = key_of<T>(x);
      if (!range.holds(key)) return;
      add_to_bin<Measure>(s, range, key, measure(x));
      // Too many stay too many: once past the end nobody counts on.
      if (*static_cast<volatile uint32_t*>(&s.control()->list_count) > kListSize) return;
      const uint32_t place = atomicAdd(&s.control()->list_count, 1u);
      if (place < kListSize) s.list()[place] = key;
    });
  }
}

template <class T, class Measure>
__device__ __forceinline__ void bin_list(const RowShared& s, uint32_t count, const KeyRange& range,
                                         const Measure& measure) {
  for (uint32_t i = threadIdx.x; i < count; i += kRowThreads) {
    const uint32_t key = s.list()[i];
    if (range.holds(key)) add_to_bin<Measure>(s, range, key, measure(value_of<T>(key)));
  }
}

// The shortest ranked prefix whose measure reaches `target` > 0; the caller knows that no key < low
// is in it and none > high exists. Bisection, kNumBins ways at a time: two passes for 16-bit
// logits, four at most, over what is left of the row. Called by all threads.
template <class T, class Measure>
__device__ Cut cut_row(const Row<T>& row, const RowShared& s, uint32_t low, uint32_t high,
                       Units target, const Measure& measure) {
  KeyRange range{.low = low, .high = high, .shift = 0};
  Units above = 0;  // of the keys above the range
  bool listed = false;
  uint32_t list_count = 0;
  while (true) {
    const int bits = 32 - __clz(static_cast<int>(range.high - range.low));
    range.shift = bits > kBinBits ? bits - kBinBits : 0;
    if (threadIdx.x == 0) {
      s.control()->list_count = 0;
      s.control()->bin = kNumBins;
    }
#pragma unroll
    for (int i = 0; i < 2 * kBinCopies; ++i) s.bins()[i * kRowThreads + threadIdx.x] = 0;
    __syncthreads();  // bins are empty
    if (listed) {
      bin_list<T>(s, list_count, range, measure);
    } else {
      bin_row(row, s, range, measure);
    }
    __syncthreads();   // bins and list are complete
    Units inside = 0;  // of this thread's bin
#pragma unroll
    for (int copy = 0; copy < kBinCopies; ++copy) {
      const uint32_t* const halves = s.bins() + 2 * (threadIdx.x * kBinCopies + copy);
      inside += halves[0] | Units{halves[1]} << 32;
    }
    if (!listed && s.control()->list_count <= kListSize) {
      listed = true;
      list_count = s.control()->list_count;
    }
    const Prefix prefix = cta_prefix(inside, s.warp_sums());
    const Units before = above + prefix.before;
    if (before < target && before + inside >= target) {
      s.control()->bin = threadIdx.x;
      s.control()->before = before;
      s.control()->inside = inside;
    }
    __syncthreads();  // the bin is known
    const uint32_t bin = s.control()->bin;
    above = s.control()->before;
    inside = s.control()->inside;
    __syncthreads();  // control has been read
    if (bin == kNumBins) return {.key = low, .num_ties = Cut::kAllTies};
    const uint32_t highest = range.high - (bin << range.shift);
    if (range.shift == 0) {
      const Units each = measure(value_of<T>(highest));
      const Units needed = (target - above + each - 1) / each;
      return {.key = highest, .num_ties = needed < inside / each ? needed : Cut::kAllTies};
    }
    const uint32_t lowest = highest - ((1u << range.shift) - 1);
    range.low = lowest > range.low && lowest <= highest ? lowest : range.low;
    range.high = highest;
  }
}

}  // namespace treeattn::cuda
