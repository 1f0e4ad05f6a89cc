// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "micro/cuda/device.h"

namespace treeattn::micro {

// Arrays on the device, for as long as it lives. With `chunk_bytes` many share an allocation; 0
// keeps them apart, so that memory checkers see a step over an end.
class Mirror {
 public:
  explicit Mirror(int64_t chunk_bytes = 0) : chunk_bytes_(chunk_bytes) {}

  // Any content.
  template <class T>
  T* room(int64_t count) {
    return static_cast<T*>(allocate(count * static_cast<int64_t>(sizeof(T))));
  }

  template <class T>
  T* zeros(int64_t count) {
    T* const data = room<T>(count);
    set_device_bytes(data, 0, count * static_cast<int64_t>(sizeof(T)));
    return data;
  }

  template <class T>
  T* copy(const T* host, int64_t count) {
    T* const data = room<T>(count);
    copy_to_device(data, host, count * static_cast<int64_t>(sizeof(T)));
    return data;
  }

  template <class T>
  T* copy(const std::vector<T>& host) {
    return copy(host.data(), static_cast<int64_t>(host.size()));
  }

 private:
  static constexpr int64_t kAlignment = 256;

  void* allocate(int64_t num_bytes) {
    const int64_t needed =
        (std::max<int64_t>(num_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    if (chunk_bytes_ == 0) return memory_.emplace_back(std::max<int64_t>(num_bytes, 1)).data();
    if (needed > left_) {
      left_ = std::max(chunk_bytes_, needed);
      next_ = static_cast<char*>(memory_.emplace_back(left_).data());
    }
    char* const data = next_;
    next_ += needed;
    left_ -= needed;
    return data;
  }

  int64_t chunk_bytes_;
  std::vector<DeviceMemory> memory_;
  char* next_ = nullptr;
  int64_t left_ = 0;
};

template <class T>
void fetch(std::vector<T>& host, const T* device) {
  copy_to_host(host.data(), device, static_cast<int64_t>(host.size() * sizeof(T)));
}

}  // namespace treeattn::micro
