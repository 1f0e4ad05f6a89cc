// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace treeattn::cpu {

// Floats of one thread, handed out again for every row or call and never cleared: fresh pages would
// be zeroed and mapped under the kernel each time. They start on a cache line, so that no vector
// straddles two.
class Scratch {
 public:
  float* floats(size_t count) {
    if (count > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<float*>(::operator new(sizeof(float) * count, kCacheLine)));
      size_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  struct Delete {
    void operator()(float* data) const { ::operator delete(data, kCacheLine); }
  };
  std::unique_ptr<float, Delete> data_;
  size_t size_ = 0;
};

}  // namespace treeattn::cpu
