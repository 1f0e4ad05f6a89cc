// SPDX-License-Identifier: Apache-2.0
// remap_kv on the device against the CPU kernel: every element of every pool, and the tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "micro/cuda/remap.h"
#include "micro/remap_check.h"

namespace treeattn::micro {

// Leaves the device's pools, tables and counts in `batch`.
inline void run_on_device(RemapBatch& batch) {
  Mirror mirror;
  std::vector<RemapPlane> planes = batch.planes;
  for (size_t i = 0; i < planes.size(); ++i) {
    const Elements& elements = batch.pools[i].elements();
    planes[i].data = mirror.copy(static_cast<const char*>(elements.data()), elements.num_bytes());
  }
  const RemapKvParams params = params_on_device(mirror, batch.params(), planes.data());
  cuda::remap_kv(params, remap_workspace(mirror, params), remap_header(mirror), device_stream());
  wait_for_device();
  for (size_t i = 0; i < planes.size(); ++i) {
    Elements& elements = batch.pools[i].elements();
    copy_to_host(elements.data(), planes[i].data, elements.num_bytes());
  }
  fetch(batch.blocks.table, params.block_table);
  fetch(batch.moved, params.moved);
  fetch(batch.status, params.status);
}

inline void compare_remap(Check& check, const RemapBatch& actual, const RemapBatch& expected,
                          const std::string& name) {
  const auto at = [&](const std::string& what, int64_t i) {
    return [=, &name] { return name + " " + what + "[" + std::to_string(i) + "]"; };
  };
  for (size_t b = 0; b < expected.moved.size(); ++b) {
    check.equal(actual.moved[b], expected.moved[b], at("moved", b));
    check.equal(actual.status[b], expected.status[b], at("status", b));
  }
  for (size_t i = 0; i < expected.blocks.table.size(); ++i) {
    check.equal(actual.blocks.table[i], expected.blocks.table[i], at("block_table", i));
  }
  for (size_t plane = 0; plane < expected.pools.size(); ++plane) {
    const Elements& got = actual.pools[plane].elements();
    const Elements& wanted = expected.pools[plane].elements();
    for (int64_t i = 0; i < wanted.size(); ++i) {
      check.equal(got.get(i), wanted.get(i), at("plane " + std::to_string(plane), i));
    }
  }
  check.end_case();
}

inline void check_device_remap(Check& check) {
  Workers workers;
  for (const PathKind kind :
       {PathKind::kScattered, PathKind::kInPlace, PathKind::kWholeBlock, PathKind::kCustomSlots}) {
    for (const int block_size : {1, 4, 16}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        RemapBatch expected = remap_check_batch(kind, block_size, dtype);
        call_remap_kv(expected.params(), expected.row_bytes(), workers, 1);
        RemapBatch batch = remap_check_batch(kind, block_size, dtype);
        run_on_device(batch);
        compare_remap(check, batch, expected,
                      path_kind_name(kind) + " block_size " + std::to_string(block_size) + " " +
                          dtype_name(dtype));
      }
    }
  }
}

}  // namespace treeattn::micro
