// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "treeattn/check.h"
#include "treeattn/dtype.h"
#include "treeattn/paged_kv.h"

namespace treeattn::bindings {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Symbolic shape checks of one op call. A symbol binds to the first size it meets and must agree
// after; dtype and device are checked along the way. Every message names op, argument, rule, value.
class Match {
 public:
  explicit Match(const char* op) : op_(op) {}
  const char* op() const { return op_; }

  // `t` has exactly these dimensions; an entry that is a number must be that size.
  void operator()(const Tensor& t, const char* name, std::initializer_list<const char*> shape,
                  std::initializer_list<ScalarType> dtypes);

  // Dimension `dim` (and all after it) of `t` is densely packed.
  void packed_from(const Tensor& t, const char* name, int dim) const;

  void bind(const char* symbol, int64_t value) { symbols_.emplace_back(symbol, value); }
  int64_t operator[](const char* symbol) const;

  // The size as an int, checked to fit one.
  int size(const char* symbol) const;

 private:
  std::optional<int64_t> find(const std::string& symbol) const;

  const char* op_;
  std::vector<std::pair<std::string, int64_t>> symbols_;
  std::optional<torch::stable::Device> device_;
  std::string device_owner_;
};

DType to_dtype(ScalarType type);
const char* dtype_name(ScalarType type);

template <class T>
const T* const_data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
const T* const_data(const std::optional<Tensor>& t) {
  return t.has_value() ? const_data<T>(*t) : nullptr;
}
template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// The pool `t` as [num_blocks, block_size, num_kv_heads, head_dim]; `scale` is the optional
// [1 or num_kv_heads] fp32 tensor of an fp8 pool.
KvPool kv_pool(Match& match, const Tensor& t, const char* name, const std::optional<Tensor>& scale,
               const char* scale_name);

inline constexpr std::initializer_list<ScalarType> kFloatTypes = {
    ScalarType::Float, ScalarType::BFloat16, ScalarType::Half};
inline constexpr std::initializer_list<ScalarType> kPoolTypes = {
    ScalarType::Float, ScalarType::BFloat16, ScalarType::Half, ScalarType::Float8_e4m3fn};

}  // namespace treeattn::bindings
