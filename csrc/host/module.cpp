// SPDX-License-Identifier: Apache-2.0
// The pybind11 module `treeattn._host`: C++ classes that hold no tensors.
#include "host/bindings.h"

PYBIND11_MODULE(_host, m) {
  m.doc() = "Host-side data structures of treeattn.";
  treeattn::host::bind_errors(m);
  treeattn::host::bind_block_pool(m);
  treeattn::host::bind_choose(m);
  treeattn::host::bind_merge_trees(m);
  treeattn::host::bind_schedule(m);
  treeattn::host::bind_suffix_trie(m);
}
