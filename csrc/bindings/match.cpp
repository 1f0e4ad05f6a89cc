// SPDX-License-Identifier: Apache-2.0
#include "bindings/match.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>

namespace treeattn::bindings {
namespace {

std::string device_name(const torch::stable::Device& device) {
  using torch::headeronly::DeviceType;
  std::string name = device.type() == DeviceType::CPU    ? "cpu"
                     : device.type() == DeviceType::CUDA ? "cuda"
                                                         : "another device type";
  if (device.type() != DeviceType::CPU && device.index() >= 0) {
    name += ':';
    name += std::to_string(device.index());
  }
  return name;
}

std::string shape_text(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

std::string join(std::initializer_list<const char*> names) {
  std::string text = "[";
  for (const char* name : names) text += (text.size() > 1 ? ", " : "") + std::string(name);
  return text + "]";
}

std::string join(std::initializer_list<ScalarType> dtypes) {
  std::string text;
  for (ScalarType dtype : dtypes) {
    text += (text.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  return text;
}

}  // namespace

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    default:
      return "another dtype";
  }
}

std::ostream& operator<<(std::ostream& out, const ArgName& name) {
  out << name.text;
  return name.index < 0 ? out : out << '[' << name.index << ']';
}

std::optional<int64_t> Match::find(const char* symbol) const {
  if (std::isdigit(static_cast<unsigned char>(symbol[0]))) return std::atoll(symbol);
  for (const Symbol& known : symbols_) {
    if (known.name == symbol) return known.value;  // equal literals are mostly one
  }
  for (const Symbol& known : symbols_) {
    if (std::strcmp(known.name, symbol) == 0) return known.value;
  }
  return std::nullopt;
}

int64_t Match::operator[](const char* symbol) const { return find(symbol).value(); }

int Match::size(const char* symbol) const {
  const int64_t value = (*this)[symbol];
  TREEATTN_CHECK(value <= std::numeric_limits<int>::max(), op_, ": ", symbol,
                 " must be less than 2**31, got ", value);
  return static_cast<int>(value);
}

void Match::operator()(const Tensor& t, ArgName name, std::initializer_list<const char*> shape,
                       std::initializer_list<ScalarType> dtypes) {
  const ScalarType dtype = t.scalar_type();
  TREEATTN_CHECK(std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end(), op_, ": ", name,
                 " must be ", join(dtypes), ", got ", dtype_name(dtype));
  const torch::stable::Device device = t.device();
  if (!device_) {
    device_ = device;
    device_owner_ = name;
  }
  TREEATTN_CHECK(device == *device_, op_, ": ", name, " must be on the device of ", device_owner_,
                 " (", device_name(*device_), "), got ", device_name(device));
  const auto sizes = t.sizes();
  TREEATTN_CHECK(sizes.size() == shape.size(), op_, ": ", name, " must have shape ", join(shape),
                 ", got ", shape_text(t));
  const int64_t* size = sizes.data();
  for (const char* symbol : shape) {
    const std::optional<int64_t> expected = find(symbol);
    if (!expected) bind(symbol, *size);
    TREEATTN_CHECK(!expected || *expected == *size, op_, ": ", name, " must have shape ",
                   join(shape), " with ", symbol, " = ", expected.value_or(0), ", got ",
                   shape_text(t));
    ++size;
  }
}

void Match::packed_from(const Tensor& t, ArgName name, int dim) const {
  const auto sizes = t.sizes(), strides = t.strides();
  int64_t expected = 1;
  for (int i = static_cast<int>(sizes.size()) - 1; i >= dim; --i) {
    TREEATTN_CHECK(sizes[i] <= 1 || strides[i] == expected || t.numel() == 0, op_, ": ", name,
                   " must be contiguous from dimension ", dim, ": stride ", i, " must be ",
                   expected, ", got ", strides[i]);
    expected *= sizes[i];
  }
}

Layout::Layout(const Tensor& t) : sizes(t.sizes()), strides(t.strides()) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &device_type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &device_index));
}

bool Layout::operator==(const Layout& other) const {
  const auto equal = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  return dtype == other.dtype && device_type == other.device_type &&
         device_index == other.device_index && equal(sizes, other.sizes) &&
         equal(strides, other.strides);
}

DType to_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    default:
      return DType::kFloat8E4M3;
  }
}

KvPool kv_pool(Match& match, const Tensor& t, const char* name, const std::optional<Tensor>& scale,
               const char* scale_name) {
  match(t, name, {"num_blocks", "block_size", "num_kv_heads", "head_dim"}, kPoolTypes);
  match.packed_from(t, name, 3);
  TREEATTN_CHECK(match["block_size"] > 0 && match["head_dim"] > 0, match.op(), ": ", name,
                 " must have a positive block_size and head_dim, got ", match["block_size"],
                 " and ", match["head_dim"]);
  const DType dtype = to_dtype(t.scalar_type());
  if (scale) {
    TREEATTN_CHECK(dtype == DType::kFloat8E4M3, match.op(), ": ", scale_name,
                   " is for float8_e4m3fn pools only, ", name, " is ", dtype_name(t.scalar_type()));
    const bool single = scale->numel() == 1;
    match(*scale, scale_name, {single ? "1" : "num_kv_heads"}, {ScalarType::Float});
  }
  return KvPool{
      .data = t.mutable_data_ptr(),
      .scale = const_data<float>(scale),
      .stride_block = t.stride(0),
      .stride_row = t.stride(1),
      .stride_head = t.stride(2),
      .stride_scale = scale && scale->numel() > 1 ? scale->stride(0) : 0,
      .num_blocks = match.size("num_blocks"),
      .block_size = match.size("block_size"),
      .num_kv_heads = match.size("num_kv_heads"),
      .head_dim = match.size("head_dim"),
      .dtype = dtype,
  };
}

}  // namespace treeattn::bindings
