// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace treeattn::host {

void bind_errors(pybind11::module_& m);
void bind_block_pool(pybind11::module_& m);
void bind_merge_trees(pybind11::module_& m);
void bind_suffix_trie(pybind11::module_& m);

}  // namespace treeattn::host
