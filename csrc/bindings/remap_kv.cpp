// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "bindings/params.h"

namespace treeattn::bindings {
namespace {

// A plane per layer from dimension `first_dim` on; a stacked tensor has its layers before that.
void add_planes(std::vector<RemapPlane>& planes, const Tensor& t, int first_dim,
                bool has_head_dim) {
  const int64_t bytes = static_cast<int64_t>(t.element_size());
  const auto sizes = t.sizes(), strides = t.strides();
  const int64_t* const size = sizes.data() + first_dim;
  const int64_t* const stride = strides.data() + first_dim;
  RemapPlane plane{
      .data = static_cast<char*>(t.mutable_data_ptr()),
      .stride_block = stride[0] * bytes,
      .stride_row = stride[1] * bytes,
      .stride_head = stride[2] * bytes,
      .num_heads = static_cast<int>(size[2]),
      .head_bytes = static_cast<int>((has_head_dim ? size[3] : 1) * bytes),
  };
  const int64_t num_layers = first_dim == 1 ? sizes[0] : 1;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    planes.push_back(plane);
    plane.data += first_dim == 1 ? strides[0] * bytes : 0;
  }
}

// The layers of a list of pools, or of one stacked tensor. Layers share num_blocks and block_size;
// heads and head_dim may differ from layer to layer, and a stacked V may have others than K.
std::vector<RemapPlane> pool_planes(Match& match, const std::vector<Tensor>& pools,
                                    const char* name) {
  std::vector<RemapPlane> planes;
  planes.reserve(pools.size());
  std::optional<Layout> last;
  for (size_t i = 0; i < pools.size(); ++i) {
    const Tensor& pool = pools[i];
    const Layout layout(pool);
    if (last && layout == *last) {
      planes.push_back(planes.back());
      planes.back().data = static_cast<char*>(pool.mutable_data_ptr());
      continue;
    }
    last = layout;
    const bool stacked = pools.size() == 1 && pool.dim() == 5;
    const ArgName label = stacked ? ArgName(name) : ArgName(name, static_cast<int64_t>(i));
    {
      const Match::Scope scope(match);
      if (stacked) {
        match(pool, label, {"num_layers", "num_blocks", "block_size", "num_kv_heads", "head_dim"},
              kPoolTypes);
      } else {
        match(pool, label, {"num_blocks", "block_size", "num_kv_heads", "head_dim"}, kPoolTypes);
      }
      match.packed_from(pool, label, stacked ? 4 : 3);
    }
    if (!match.find("num_blocks")) match.bind("num_blocks", pool.size(stacked ? 1 : 0));
    add_planes(planes, pool, stacked ? 1 : 0, true);
  }
  return planes;
}

void check_layers(const char* name, const std::vector<RemapPlane>& planes, size_t expected) {
  TREEATTN_CHECK(planes.size() == expected, "remap_kv: ", name,
                 " must have as many layers as k_caches, ", expected, ", got ", planes.size());
}

std::vector<RemapPlane> scale_planes(Match& match, const std::vector<Tensor>& scales,
                                     const char* name, const std::vector<RemapPlane>& pools) {
  if (scales.empty()) return {};
  std::vector<RemapPlane> planes;
  for (size_t i = 0; i < scales.size(); ++i) {
    const Tensor& scale = scales[i];
    const Match::Scope scope(match);
    const bool stacked = scales.size() == 1 && scale.dim() == 4;
    if (stacked) {
      match(scale, name, {"num_layers", "num_blocks", "block_size", "num_kv_heads"}, kFloatTypes);
    } else {
      match(scale, ArgName(name, static_cast<int64_t>(i)),
            {"num_blocks", "block_size", "num_kv_heads"}, kFloatTypes);
    }
    add_planes(planes, scale, stacked ? 1 : 0, false);
  }
  check_layers(name, planes, pools.size());
  for (size_t i = 0; i < planes.size(); ++i) {
    TREEATTN_CHECK(planes[i].num_heads == pools[i].num_heads, "remap_kv: ", name, "[", i,
                   "] must have the ", pools[i].num_heads, " heads of its pool, got ",
                   planes[i].num_heads);
  }
  return planes;
}

// Rows whose heads follow each other are copied in one piece.
void join_heads(std::vector<RemapPlane>& planes) {
  for (RemapPlane& plane : planes) {
    if (plane.stride_head != plane.head_bytes) continue;
    plane.head_bytes *= plane.num_heads;
    plane.num_heads = 1;
  }
}

std::vector<RemapPlane> all_planes(Match& match, const std::vector<Tensor>& k_caches,
                                   const std::vector<Tensor>& v_caches,
                                   const std::vector<Tensor>& k_scales,
                                   const std::vector<Tensor>& v_scales) {
  const std::vector<RemapPlane> k = pool_planes(match, k_caches, "k_caches");
  TREEATTN_CHECK(!k.empty(), "remap_kv: k_caches must have at least one layer, got none");
  const std::vector<RemapPlane> v = pool_planes(match, v_caches, "v_caches");
  check_layers("v_caches", v, k.size());
  const std::vector<RemapPlane> k_scale = scale_planes(match, k_scales, "k_scales", k);
  const std::vector<RemapPlane> v_scale = scale_planes(match, v_scales, "v_scales", v);
  std::vector<RemapPlane> planes;
  planes.reserve(k.size() + v.size() + k_scale.size() + v_scale.size());
  for (const auto* part : {&k, &v, &k_scale, &v_scale}) {
    planes.insert(planes.end(), part->begin(), part->end());
  }
  join_heads(planes);
  return planes;
}

}  // namespace

RemapKvCall remap_kv_params(const std::vector<Tensor>& k_caches,
                            const std::vector<Tensor>& v_caches,
                            const std::vector<Tensor>& k_scales,
                            const std::vector<Tensor>& v_scales, const Tensor& node_indptr,
                            const Tensor& context_lens, const Tensor& block_table,
                            const Tensor& slot_mapping, const Tensor& path,
                            const Tensor& num_accepted, const Tensor& status, int64_t block_size,
                            const Tensor& moved, const OptTensor& work,
                            const OptTensor& workspace) {
  Match match("remap_kv");
  const auto packed = [&match](const Tensor& t, const char* name,
                               std::initializer_list<const char*> shape, ScalarType dtype) {
    match(t, name, shape, {dtype});
    match.packed_from(t, name, 0);
  };
  packed(context_lens, "context_lens", {"num_requests"}, ScalarType::Int);
  packed(node_indptr, "node_indptr", {"num_requests + 1"}, ScalarType::Int);
  TREEATTN_CHECK(node_indptr.size(0) == match["num_requests"] + 1,
                 "remap_kv: node_indptr must have shape [num_requests + 1] with num_requests = ",
                 match["num_requests"], ", got [", node_indptr.size(0), "]");
  match(block_table, "block_table", {"num_requests", "max_blocks"}, {ScalarType::Int});
  match.packed_from(block_table, "block_table", 1);
  packed(slot_mapping, "slot_mapping", {"num_nodes"}, ScalarType::Long);
  match(path, "path", {"num_requests", "max_depth + 1"}, {ScalarType::Int});
  match.packed_from(path, "path", 1);
  packed(num_accepted, "num_accepted", {"num_requests"}, ScalarType::Int);
  packed(status, "status", {"num_requests"}, ScalarType::Int);
  packed(moved, "moved", {"num_requests"}, ScalarType::Int);
  TREEATTN_CHECK(block_size >= 1, "remap_kv: block_size must be at least 1, got ", block_size);
  match.bind("block_size", block_size);
  std::vector<RemapPlane> planes = all_planes(match, k_caches, v_caches, k_scales, v_scales);

  const RemapKvParams params{
      .planes = planes.data(),
      .node_indptr = const_data<int32_t>(node_indptr),
      .context_lens = const_data<int32_t>(context_lens),
      .slot_mapping = const_data<int64_t>(slot_mapping),
      .path = const_data<int32_t>(path),
      .num_accepted = const_data<int32_t>(num_accepted),
      .status = mutable_data<int32_t>(status),
      .block_table = mutable_data<int32_t>(block_table),
      .moved = mutable_data<int32_t>(moved),
      .stride_block_table = block_table.stride(0),
      .stride_path = path.stride(0),
      .num_planes = static_cast<int>(planes.size()),
      .num_requests = match.size("num_requests"),
      .num_nodes = match.size("num_nodes"),
      .path_width = match.size("max_depth + 1"),
      .max_blocks = match.size("max_blocks"),
      .num_blocks = match.size("num_blocks"),
      .block_size = match.size("block_size"),
  };
  if (workspace) {
    packed(*workspace, "workspace", {"workspace size"}, ScalarType::Int);
    const int64_t least =
        remap_kv_workspace_size(params.num_requests, params.path_width, params.num_blocks);
    TREEATTN_CHECK(workspace->size(0) >= least, "remap_kv: workspace must hold ", least,
                   " values, got ", workspace->size(0));
  }
  return {.planes = std::move(planes),  // moving keeps the data in place
          .params = params,
          .work = scratch_of<int32_t>(match, work, "work", ScalarType::Int),
          .workspace = workspace ? mutable_data<int32_t>(*workspace) : nullptr};
}

}  // namespace treeattn::bindings
