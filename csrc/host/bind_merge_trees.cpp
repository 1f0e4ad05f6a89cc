// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "host/bindings.h"
#include "host/merge_trees.h"

namespace py = pybind11;

namespace treeattn::host {
namespace {

using Tokens = py::array_t<std::int64_t, py::array::c_style>;
using Indices = py::array_t<std::int32_t, py::array::c_style>;

py::tuple merge(const std::vector<std::pair<Tokens, Indices>>& trees) {
  std::vector<TreeView> views;
  for (const auto& [tokens, parents] : trees) {
    views.push_back({.tokens = {tokens.data(), static_cast<std::size_t>(tokens.size())},
                     .parents = {parents.data(), static_cast<std::size_t>(parents.size())}});
  }
  const MergedTree merged = merge_trees(views);
  const auto size = static_cast<py::ssize_t>(merged.tokens.size());
  return py::make_tuple(Tokens(size, merged.tokens.data()), Indices(size, merged.parents.data()),
                        Indices(size, merged.tree.data()), Indices(size, merged.node.data()),
                        Indices(size, merged.first.data()));
}

}  // namespace

void bind_merge_trees(py::module_& m) {
  m.def(
      "merge_trees", &merge, py::arg("trees"),
      "Merge valid (tokens int64, parents int32) trees. Returns tokens, parents, the tree and the\n"
      "node each merged node comes from, and its first sibling with the same token.");
}

}  // namespace treeattn::host
