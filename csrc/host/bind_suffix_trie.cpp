// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "host/bindings.h"
#include "host/suffix_trie.h"

namespace py = pybind11;

namespace treeattn::host {
namespace {

constexpr const char* kTrieDoc =
    "Drafts by looking up how the end of a stream went on earlier.\n\n"
    "Counts all windows of up to `max_depth` tokens of each stream; with `shared`, all streams\n"
    "count together. An unknown stream is a KeyError, other bad input a ValueError.";

constexpr const char* kProposeDoc =
    "The `num_nodes` likeliest paths below the last token of the stream (OPT-Tree, 2406.17276).\n\n"
    "Returns tokens [n] int64, parents [n] int32 and log_probs [n] float64 of the path, with\n"
    "n <= num_nodes; node 0 is the root, order depth first, likeliest child first. The law after\n"
    "a context is that of its longest suffix that was continued before, of at least `min_match`\n"
    "tokens; paths less likely than `min_prob` are left out.";

py::tuple propose(const SuffixTrie& trie, std::int64_t stream, std::int64_t num_nodes,
                  std::int64_t min_match, double min_prob) {
  const Draft draft = trie.propose(stream, num_nodes, min_match, min_prob);
  return py::make_tuple(as_array(draft.tokens), as_array(draft.parents), as_array(draft.log_probs));
}

}  // namespace

void bind_suffix_trie(py::module_& m) {
  py::class_<SuffixTrie>(m, "SuffixTrie", kTrieDoc)
      .def(py::init<std::int64_t, bool>(), py::arg("max_depth") = 16, py::arg("shared") = false)
      .def(
          "extend",
          [](SuffixTrie& trie, std::int64_t stream, const std::vector<std::int64_t>& tokens) {
            trie.extend(stream, tokens);
          },
          py::arg("stream"), py::arg("tokens"),
          "Append tokens to a stream; an unknown one begins here.")
      .def("forget", &SuffixTrie::forget, py::arg("stream"), "Remove a stream and its counts.")
      .def("propose", &propose, py::arg("stream"), py::arg("num_nodes"), py::kw_only(),
           py::arg("min_match") = 1, py::arg("min_prob") = 0.0, kProposeDoc)
      .def_property_readonly("max_depth", &SuffixTrie::max_depth)
      .def_property_readonly("shared", &SuffixTrie::shared)
      .def_property_readonly("num_windows", &SuffixTrie::num_windows,
                             "Distinct windows that are counted now.");
}

}  // namespace treeattn::host
