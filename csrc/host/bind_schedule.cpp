// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "host/best_first.h"
#include "host/bindings.h"
#include "host/sequoia.h"

namespace py = pybind11;

namespace treeattn::host {
namespace {

template <class T>
py::tuple bind_best_first(const py::array_t<T, py::array::c_style>& log_probs,
                          std::int64_t num_nodes, std::int64_t root_token) {
  const std::span<const T> values(log_probs.data(), static_cast<std::size_t>(log_probs.size()));
  const Draft draft = best_first(values, log_probs.shape(1), num_nodes, root_token);
  return py::make_tuple(as_array(draft.tokens), as_array(draft.parents), as_array(draft.log_probs));
}

constexpr const char* kBestFirstDoc =
    "The likeliest paths of independent levels, log_probs [levels, V] float32 or float64.\n"
    "Returns tokens int64, parents int32 and log_probs float64 of the paths, depth first.";

py::tuple bind_sequoia(const std::vector<double>& p, std::int64_t num_nodes,
                       std::int64_t max_depth) {
  const SequoiaTree tree = sequoia_tree(p, num_nodes, max_depth);
  return py::make_tuple(as_array(tree.parents), tree.expected_tokens);
}

}  // namespace

void bind_schedule(py::module_& m) {
  m.def("best_first", &bind_best_first<float>, py::arg("log_probs").noconvert(),
        py::arg("num_nodes"), py::arg("root_token"), kBestFirstDoc);
  m.def("best_first", &bind_best_first<double>, py::arg("log_probs").noconvert(),
        py::arg("num_nodes"), py::arg("root_token"), kBestFirstDoc);
  m.def("sequoia_tree", &bind_sequoia, py::arg("p"), py::arg("num_nodes"), py::arg("max_depth"),
        "The best tree when sibling i is accepted with probability p[i].\n"
        "Returns parents int32, depth first, and the expected tokens, the root's included.");
}

}  // namespace treeattn::host
