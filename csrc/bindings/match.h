// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <vector>

#include "treeattn/check.h"
#include "treeattn/dtype.h"
#include "treeattn/paged_kv.h"

namespace treeattn::bindings {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// An argument of an op, or one entry of an argument that is a list. Put into words only by errors.
struct ArgName {
  ArgName(const char* text_, int64_t index_ = -1) : text(text_), index(index_) {}
  const char* text;
  int64_t index;
};
std::ostream& operator<<(std::ostream& out, const ArgName& name);

// Symbolic shape checks of one op call. A symbol binds to the first size it meets and must agree
// after; dtype and device are checked along the way. Every message names op, argument, rule, value.
// Names and symbols are string literals: a check that holds copies and allocates nothing.
class Match {
 public:
  explicit Match(const char* op) : op_(op) { symbols_.reserve(kUsualSymbols); }
  const char* op() const { return op_; }

  // `t` has exactly these dimensions; an entry that is a number must be that size.
  void operator()(const Tensor& t, ArgName name, std::initializer_list<const char*> shape,
                  std::initializer_list<ScalarType> dtypes);

  // Dimension `dim` (and all after it) of `t` is densely packed.
  void packed_from(const Tensor& t, ArgName name, int dim) const;

  void bind(const char* symbol, int64_t value) { symbols_.push_back({symbol, value}); }
  std::optional<int64_t> find(const char* symbol) const;
  int64_t operator[](const char* symbol) const;

  // The size as an int, checked to fit one.
  int size(const char* symbol) const;

  // Symbols that are bound during a scope's life are forgotten at its end.
  class Scope {
   public:
    explicit Scope(Match& match) : match_(match), num_symbols_(match.symbols_.size()) {}
    ~Scope() { match_.symbols_.resize(num_symbols_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Match& match_;
    size_t num_symbols_;
  };

 private:
  static constexpr size_t kUsualSymbols = 16;
  struct Symbol {
    const char* name = nullptr;
    int64_t value = 0;
  };
  const char* op_;
  std::vector<Symbol> symbols_;
  std::optional<torch::stable::Device> device_;
  ArgName device_owner_{""};
};

// All that checks look at, for the many alike tensors of a list: equal layouts need one check.
// Borrows sizes and strides from the tensor; numbers are the shim's.
struct Layout {
  explicit Layout(const Tensor& t);
  bool operator==(const Layout& other) const;

  torch::headeronly::IntHeaderOnlyArrayRef sizes, strides;
  int32_t dtype, device_type, device_index;
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
