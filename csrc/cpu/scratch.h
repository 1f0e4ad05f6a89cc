// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace treeattn::cpu {

// Floats of one thread, handed out again for every row and never cleared.
class Scratch {
 public:
  float* floats(size_t count) {
    if (count > size_) {
      data_ = std::make_unique_for_overwrite<float[]>(count);
      size_ = count;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<float[]> data_;
  size_t size_ = 0;
};

}  // namespace treeattn::cpu
