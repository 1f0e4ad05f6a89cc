// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/plan_work.h"
#include "cuda/remap_kv/remap_kv.h"
#include "micro/cuda/mirror.h"
#include "treeattn/remap_kv.h"

namespace treeattn::micro {

// The same call with its arrays on the device, except the list of planes, which launchers read on
// the host; the caller says where the planes' own data lies.
inline RemapKvParams params_on_device(Mirror& mirror, RemapKvParams p, const RemapPlane* planes) {
  const int64_t requests = p.num_requests;
  p.planes = planes;
  p.node_indptr = mirror.copy(p.node_indptr, requests + 1);
  p.context_lens = mirror.copy(p.context_lens, requests);
  p.slot_mapping = mirror.copy(p.slot_mapping, p.num_nodes);
  p.path = mirror.copy(p.path, requests * p.stride_path);
  p.num_accepted = mirror.copy(p.num_accepted, requests);
  p.status = mirror.copy(p.status, requests);
  p.block_table = mirror.copy(p.block_table, requests * p.stride_block_table);
  p.moved = mirror.room<int32_t>(requests);
  return p;
}

inline int32_t* remap_workspace(Mirror& mirror, const RemapKvParams& p) {
  return mirror.room<int32_t>(remap_kv_workspace_size(p.num_requests, p.path_width, p.num_blocks));
}

// The counters of a plan; calls one after the other may share them.
inline int32_t* remap_header(Mirror& mirror) {
  return mirror.zeros<int32_t>(cuda::kRemapHeaderSize);
}

}  // namespace treeattn::micro
