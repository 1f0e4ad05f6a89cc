// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace treeattn::host {

void bind_errors(pybind11::module_& m);
void bind_block_pool(pybind11::module_& m);
void bind_choose(pybind11::module_& m);
void bind_merge_trees(pybind11::module_& m);
void bind_schedule(pybind11::module_& m);
void bind_suffix_trie(pybind11::module_& m);

template <class T>
pybind11::array_t<T> as_array(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

}  // namespace treeattn::host
