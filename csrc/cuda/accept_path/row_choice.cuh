// SPDX-License-Identifier: Apache-2.0
// What a CTA chooses from one row of logits. Every function is called by all its threads.
#pragma once

#include <cmath>

#include "cuda/accept_path/row_cut.cuh"
#include "cuda/accept_path/sampling.cuh"
#include "treeattn/plan_tree.h"
#include "treeattn/residual.h"

namespace treeattn::cuda {

struct Choice {
  int token;   // -1 unless status is kOk
  int status;  // kOk, kNonFinite or kNoTokenLeft
  float max;   // of the allowed logits
};

struct Peak {
  float max;  // -inf when nothing is above it
  int id;     // the first that holds it
  bool finite;
};

// The first pass over a row: its peak, and the peaks of its chunks. Fills the stash.
template <class T>
__device__ Peak find_peak(const Row<T>& row, const RowShared& s) {
  float best = -kInfinity;
  int best_id = INT32_MAX;
  bool finite = true;  // neither NaN nor +inf
  for (int chunk = warp_of_thread(); chunk < row.num_chunks; chunk += kRowWarps) {
    float top = -kInfinity;
    for_each_in_chunk<Pass::kFirst>(row, s, chunk, [&](float x, int id) {
      finite = finite && x < kInfinity;
      if (x > top) top = x;
      if (x > best) {
        best = x;
        best_id = id;
      }
    });
    top = warp_max(top);
    if (lane_of_thread() == 0) s.chunk_maxima()[chunk] = top;
  }
  // The larger key wins, then the lower id; what is not finite beats all keys.
  constexpr uint32_t kBad = ~0u;
  const uint32_t key = finite ? key_of<Float32>(best) : kBad;
  const Units winner =
      cta_max(Units{key} << 32 | (UINT32_MAX - static_cast<uint32_t>(best_id)), s.warp_sums());
  const uint32_t winner_key = static_cast<uint32_t>(winner >> 32);
  return {.max = value_of<Float32>(winner_key),
          .id = static_cast<int>(UINT32_MAX - static_cast<uint32_t>(winner)),
          .finite = winner_key != kBad};
}

__device__ __forceinline__ int status_of(const Peak& peak) {
  if (!peak.finite) return kNonFinite;
  return peak.max == -kInfinity ? kNoTokenLeft : kOk;
}

// Which ids of a row may be drawn, and what each of them weighs.
struct Kept {
  Weigh weigh;
  float cut;    // logits below it are out
  int tie_end;  // ... and those that equal it from this id on
  float min_weight;

  // exp((x - max) / temperature), 0 where the id is out.
  __device__ __forceinline__ float weight(float x, int id) const {
    if (!(x > cut || (x == cut && id < tie_end))) return 0.0f;
    const float weight = weigh(x);
    return weight >= min_weight ? weight : 0.0f;
  }
  __device__ __forceinline__ Units operator()(float x, int id) const {
    return weigh.units(weight(x, id));
  }
};

__device__ __forceinline__ Kept kept_by(const TargetLaw& law, int vocab_size) {
  return {.weigh = weigh_row(law.max, law.temperature, vocab_size),
          .cut = law.cut,
          .tie_end = law.tie_end,
          .min_weight = law.min_weight};
}

struct Ties {
  float cut;
  __device__ __forceinline__ Units operator()(float x, int) const { return x == cut ? 1 : 0; }
};

// Fills chunk_sums with the measure of each chunk; nothing below `cut` has any.
template <class T, class Measure>
__device__ void sum_chunks(const Row<T>& row, const RowShared& s, float cut,
                           const Measure& measure) {
  for (int chunk = warp_of_thread(); chunk < row.num_chunks; chunk += kRowWarps) {
    Units sum = 0;
    if (s.chunk_maxima()[chunk] >= cut) {
      for_each_in_chunk<Pass::kAgain>(row, s, chunk,
                                      [&](float x, int id) { sum += measure(x, id); });
      sum = warp_sum(sum);
    }
    if (lane_of_thread() == 0) s.chunk_sums()[chunk] = sum;
  }
  __syncthreads();  // chunk_sums are complete
}

// Chunks [begin, end) of this thread, where each thread takes as many that follow each other.
struct ChunkSpan {
  int begin, end;
};
template <class T>
__device__ __forceinline__ ChunkSpan chunks_of_thread(const Row<T>& row) {
  const int per_thread = (row.num_chunks + kRowThreads - 1) / kRowThreads;
  const int begin = smaller(static_cast<int>(threadIdx.x) * per_thread, row.num_chunks);
  return {.begin = begin, .end = smaller(begin + per_thread, row.num_chunks)};
}

template <class T>
__device__ Prefix chunk_prefix(const Row<T>& row, const RowShared& s) {
  const ChunkSpan span = chunks_of_thread(row);
  Units sum = 0;
  for (int chunk = span.begin; chunk < span.end; ++chunk) sum += s.chunk_sums()[chunk];
  return cta_prefix(sum, s.warp_sums());
}

// The smallest id of the chunk whose cumulative measure exceeds `target`. Called by one warp.
template <class T, class Measure>
__device__ int find_in_chunk(const Row<T>& row, const RowShared& s, int chunk, Units target,
                             const Measure& measure) {
  Units before = 0;
  int found = -1;
  for (int i = 0; i < kVecsPerLane; ++i) {
    const int vec = chunk * kChunkVecs + i * kWarpSize + lane_of_thread();
    const uint4 bytes = load_vec<Pass::kAgain>(row, s, vec);
    Units sum = 0;
    for_each_in_vec(row, bytes, vec, [&](float x, int id) { sum += measure(x, id); });
    const Units inclusive = warp_prefix(sum);
    Units cumulative = before + inclusive - sum;
    if (cumulative <= target && cumulative + sum > target) {
      for_each_in_vec(row, bytes, vec, [&](float x, int id) {
        cumulative += measure(x, id);
        if (found < 0 && cumulative > target) found = id;
      });
    }
    before += __shfl_sync(kAllLanes, inclusive, kWarpSize - 1);
  }
  return found;
}

// The smallest id whose cumulative measure in ascending ids exceeds `target`, which is below the
// total; `prefix` comes from chunk_prefix after sum_chunks with the same measure.
template <class T, class Measure>
__device__ int find_id(const Row<T>& row, const RowShared& s, const Prefix& prefix, Units target,
                       const Measure& measure) {
  const ChunkSpan span = chunks_of_thread(row);
  Units before = prefix.before;
  for (int chunk = span.begin; chunk < span.end; ++chunk) {
    const Units sum = s.chunk_sums()[chunk];
    if (before <= target && before + sum > target) {
      s.control()->chunk = chunk;
      s.control()->before = before;
    }
    before += sum;
  }
  __syncthreads();  // the chunk is known
  if (warp_of_thread() == 0) {
    const int found =
        find_in_chunk(row, s, s.control()->chunk, target - s.control()->before, measure);
    if (found >= 0) s.control()->id = found;
  }
  __syncthreads();  // the id is known
  const int id = s.control()->id;
  __syncthreads();  // control has been read
  return id;
}

// The first id from which on ids whose logit equals the cut are out.
template <class T>
__device__ int end_of_ties(const Row<T>& row, const RowShared& s, const Cut& cut) {
  if (cut.num_ties == Cut::kAllTies) return INT32_MAX;
  const Ties ties{.cut = value_of<T>(cut.key)};
  sum_chunks(row, s, ties.cut, ties);
  return find_id(row, s, chunk_prefix(row, s), cut.num_ties - 1, ties) + 1;
}

// At most the k-th largest logit: the k-th largest of the chunks' peaks.
template <class T>
__device__ uint32_t lowest_of_top_k(const Row<T>& row, const RowShared& s, int k) {
  if (k > row.num_chunks || row.num_chunks > kRowThreads) return 0;
  const int chunk = threadIdx.x;
  if (chunk < row.num_chunks) {
    const float mine = s.chunk_maxima()[chunk];
    int rank = 0;
    for (int other = 0; other < row.num_chunks; ++other) {
      const float x = s.chunk_maxima()[other];
      rank += x > mine || (x == mine && other < chunk);
    }
    if (rank == k - 1) s.control()->low_key = key_of<T>(mine);
  }
  __syncthreads();  // the key is known
  const uint32_t key = s.control()->low_key;
  __syncthreads();  // control has been read
  return key;
}

// At most the lowest logit of a top-p set: ids lighter than this weigh, all together, less than
// what the set leaves out. Rounded down, against all that fp32 may have rounded up.
template <class T>
__device__ uint32_t lowest_of_top_p(const Weigh& weigh, float temperature, Units left_out,
                                    int vocab_size) {
  const float light = 0.999f * static_cast<float>(left_out) / weigh.unit_scale / vocab_size;
  if (!(light > 1e-30f)) return 0;
  const float distance = temperature * 0.69314718f * log2_approx(light);
  const float rounding = (std::fabs(weigh.max) + std::fabs(distance) + temperature) * 0x1p-20f;
  return key_of<T>(weigh.max + distance - rounding);
}

// The law that the filters make of the row. Leaves its sums by chunk, and in `prefix` those of this
// thread, for draw_found. `law` and `prefix` are left alone unless the row has a law.
template <class T>
__device__ int find_law(const Row<T>& row, const RowShared& s, const Sampling& sampling,
                        TargetLaw& law, Prefix& prefix) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 3.402823466e38f;
  const Peak peak = find_peak(row, s);
  if (status_of(peak) != kOk) return status_of(peak);
  // The clamp keeps -inf / temperature and 0 / temperature defined.
  const float temperature = sampling.temperature < kSmallest  ? kSmallest
                            : sampling.temperature > kLargest ? kLargest
                                                              : sampling.temperature;
  const Weigh weigh = weigh_row(peak.max, temperature, row.vocab_size);
  Kept kept{.weigh = weigh, .cut = -kInfinity, .tie_end = INT32_MAX, .min_weight = 0.0f};
  const uint32_t high = key_of<T>(peak.max);
  Cut cut{.key = 0, .num_ties = Cut::kAllTies};
  if (sampling.top_k > 0 && sampling.top_k < row.vocab_size) {
    const uint32_t low = lowest_of_top_k(row, s, sampling.top_k);
    cut = cut_row(row, s, low, high, sampling.top_k, CountIds{});
    kept.cut = value_of<T>(cut.key);
    kept.tie_end = end_of_ties(row, s, cut);
  }
  if (sampling.top_p < 1.0f) {
    sum_chunks(row, s, kept.cut, kept);
    const Units total = chunk_prefix(row, s).total;
    const double wanted = std::ceil(double{sampling.top_p} * static_cast<double>(total));
    const Units target = wanted < 1.0 ? 1 : smaller(static_cast<Units>(wanted), total);
    const uint32_t light = lowest_of_top_p<T>(weigh, temperature, total - target, row.vocab_size);
    const Cut by_weight = cut_row(row, s, larger(light, cut.key), high, target, WeighIds{weigh});
    const Cut both = Cut::shorter(cut, by_weight);
    if (both.key != cut.key || both.num_ties != cut.num_ties) {
      kept.cut = value_of<T>(both.key);
      kept.tie_end = end_of_ties(row, s, both);
    }
  }
  // The likeliest id weighs 1 and is always kept, so a weight is p / max p.
  if (sampling.min_p > 0.0f) kept.min_weight = sampling.min_p;
  sum_chunks(row, s, kept.cut, kept);
  prefix = chunk_prefix(row, s);
  law = {.max = peak.max,
         .temperature = temperature,
         .cut = kept.cut,
         .tie_end = kept.tie_end,
         .min_weight = kept.min_weight,
         .total = static_cast<double>(prefix.total) / weigh.unit_scale};
  return kOk;
}

// From the law that was found last, while its sums are there: inverse CDF in ascending id, the
// smallest id whose cumulative probability exceeds `uniform`.
template <class T>
__device__ int draw_found(const Row<T>& row, const RowShared& s, const TargetLaw& law,
                          const Prefix& prefix, double uniform) {
  const double point = uniform * static_cast<double>(prefix.total);
  // Beyond the last id there is none: a uniform outside [0, 1), or NaN, draws an end of the row.
  const Units target = point < static_cast<double>(prefix.total)
                           ? (point > 0 ? smaller(static_cast<Units>(point), prefix.total - 1) : 0)
                           : prefix.total - 1;
  return find_id(row, s, prefix, target, kept_by(law, row.vocab_size));
}

// The lowest id with the largest allowed logit.
template <class T>
__device__ Choice greedy(const Row<T>& row, const RowShared& s) {
  const Peak peak = find_peak(row, s);
  const int status = status_of(peak);
  return {.token = status == kOk ? peak.id : -1, .status = status, .max = peak.max};
}

// Log probability of an id of the law.
template <class T>
__device__ __forceinline__ float processed_log_prob(const Row<T>& row, const TargetLaw& law,
                                                    int id) {
  return static_cast<float>(log_prob_of(law, to_float(load_global(row.logits + id))));
}

// Raw log-softmax of a token: neither temperature nor `allowed` applies. `max` is that of the
// allowed logits, whose pass over the row was the last that filled the stash.
template <class T>
__device__ float log_prob(const Row<T>& chosen_from, const RowShared& s, int token, float max) {
  const Row<T> row(chosen_from.logits, nullptr, chosen_from.vocab_size);
  if (chosen_from.allowed != nullptr) {
    const Peak peak = find_peak(row, s);
    if (!peak.finite) return __uint_as_float(0x7fc00000);
    max = peak.max;
  }
  const Weigh weigh = weigh_row(max, 1.0f, row.vocab_size);
  const Kept all{.weigh = weigh, .cut = -kInfinity, .tie_end = INT32_MAX, .min_weight = 0.0f};
  sum_chunks(row, s, all.cut, all);
  const double total = static_cast<double>(chunk_prefix(row, s).total) / weigh.unit_scale;
  const double logit = to_float(load_global(row.logits + token));
  return static_cast<float>(logit - max - std::log(total));
}

}  // namespace treeattn::cuda
