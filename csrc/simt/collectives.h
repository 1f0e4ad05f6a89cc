// SPDX-License-Identifier: Apache-2.0
// The collectives of a warp, and atomics. One host thread runs everything, so an atomic is a plain
// access; in a random order others may run before it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "simt/machine.h"

namespace treeattn::simt {

// Every lane of `mask` brings a value and takes that of lane `source`.
template <class T>
T exchange(const char* what, uint32_t mask, T value, int source, const Site& site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  struct Lane {
    T value;
    T taken;
    int source;
  } mine{value, value, source};
  if (!(mask >> source & 1)) {
    fail(site, std::string(what) + ": lane " + std::to_string(source) + " is not in the mask");
  }
  meet(
      what, mask,
      [](void* const* brought, uint32_t, const Site&) {
        for (int i = 0; i < kWarpSize; ++i) {
          if (brought[i] == nullptr) continue;
          Lane& lane = *static_cast<Lane*>(brought[i]);
          lane.taken = static_cast<const Lane*>(brought[lane.source])->value;
        }
      },
      &mine, site);
  return mine.taken;
}

// The lanes of `mask` whose values stand in `relation` to the caller's: bits of a ballot.
template <class T, bool kMatch>
uint32_t compare(const char* what, uint32_t mask, T value, const Site& site) {
  struct Lane {
    T value;
    uint32_t lanes;
  } mine{value, 0};
  meet(
      what, mask,
      [](void* const* brought, uint32_t, const Site&) {
        for (int i = 0; i < kWarpSize; ++i) {
          if (brought[i] == nullptr) continue;
          Lane& lane = *static_cast<Lane*>(brought[i]);
          for (int j = 0; j < kWarpSize; ++j) {
            if (brought[j] == nullptr) continue;
            const T other = static_cast<const Lane*>(brought[j])->value;
            lane.lanes |= uint32_t{kMatch ? other == lane.value : other != T{}} << j;
          }
        }
      },
      &mine, site);
  return mine.lanes;
}

template <class T, class F>
T update(T* address, const F& next) {
  preempt();
  ++counters.atomics;
  const T before = *address;
  *address = next(before);
  return before;
}

}  // namespace treeattn::simt

using TreeattnSite = treeattn::simt::Site;

inline void __syncthreads(const TreeattnSite& site = TreeattnSite::current()) {
  treeattn::simt::sync_threads(site);
}
inline void __syncwarp(unsigned mask = 0xffffffff,
                       const TreeattnSite& site = TreeattnSite::current()) {
  treeattn::simt::meet(
      "__syncwarp", mask, [](void* const*, uint32_t, const TreeattnSite&) {}, nullptr, site);
}

// Shuffles work within segments of `width` lanes.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              const TreeattnSite& site = TreeattnSite::current()) {
  const int lane = treeattn::simt::lane();
  const int from = (lane & ~(width - 1)) | (source & (width - 1));
  return treeattn::simt::exchange("__shfl_sync", mask, value, from, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  const TreeattnSite& site = TreeattnSite::current()) {
  const int lane = treeattn::simt::lane(), from = lane ^ lanes;
  const bool within = from <= (lane | (width - 1));
  return treeattn::simt::exchange("__shfl_xor_sync", mask, value, within ? from : lane, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const TreeattnSite& site = TreeattnSite::current()) {
  const int lane = treeattn::simt::lane(), from = lane + static_cast<int>(delta);
  const bool within = from <= (lane | (width - 1));
  return treeattn::simt::exchange("__shfl_down_sync", mask, value, within ? from : lane, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const TreeattnSite& site = TreeattnSite::current()) {
  const int lane = treeattn::simt::lane(), from = lane - static_cast<int>(delta);
  const bool within = from >= (lane & ~(width - 1));
  return treeattn::simt::exchange("__shfl_up_sync", mask, value, within ? from : lane, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const TreeattnSite& site = TreeattnSite::current()) {
  return treeattn::simt::compare<int, false>("__ballot_sync", mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate,
                      const TreeattnSite& site = TreeattnSite::current()) {
  return treeattn::simt::compare<int, false>("__any_sync", mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const TreeattnSite& site = TreeattnSite::current()) {
  return treeattn::simt::compare<int, false>("__all_sync", mask, predicate, site) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value,
                          const TreeattnSite& site = TreeattnSite::current()) {
  return treeattn::simt::compare<T, true>("__match_any_sync", mask, value, site);
}

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T old) { return std::max(old, value); });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T old) { return std::min(old, value); });
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return treeattn::simt::update(address, [&](T old) { return old == expected ? value : old; });
}
inline void __threadfence() { treeattn::simt::preempt(); }
