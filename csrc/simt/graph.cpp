// SPDX-License-Identifier: Apache-2.0
#include "simt/graph.h"

#include <utility>
#include <vector>

namespace treeattn::simt {
namespace {

std::vector<Work> graph;
bool is_capturing = false;

}  // namespace

cudaError_t submit(Work work) {
  if (!is_capturing) return work();
  graph.push_back(std::move(work));
  return cudaSuccess;
}

void begin_capture() {
  graph.clear();
  is_capturing = true;
}

void end_capture() { is_capturing = false; }

cudaError_t replay() {
  for (const Work& work : graph) {
    if (const cudaError_t error = work(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace treeattn::simt
