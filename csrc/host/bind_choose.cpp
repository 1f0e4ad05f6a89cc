// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <span>

#include "host/bindings.h"
#include "host/choose_nodes.h"
#include "host/learned.h"

namespace py = pybind11;

namespace treeattn::host {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <class T>
std::span<const T> view(const std::optional<Array<T>>& array) {
  return array ? view(*array) : std::span<const T>();
}

ScoredTree scored_tree(const Array<std::int64_t>& tokens, const Array<std::int32_t>& parents,
                       const Array<std::int32_t>& depths,
                       const std::optional<Array<double>>& scores) {
  return {view(tokens), view(parents), view(depths), view(scores)};
}

TableShape shape_of(const Array<double>& table) {
  return {static_cast<std::int32_t>(table.shape(0)), static_cast<std::int32_t>(table.shape(1))};
}

py::array_t<double> bind_log_chances(const Array<std::int64_t>& tokens,
                                     const Array<std::int32_t>& parents,
                                     const Array<std::int32_t>& depths,
                                     const std::optional<Array<double>>& scores,
                                     const Array<double>& trust) {
  return as_array(
      log_chances(scored_tree(tokens, parents, depths, scores), shape_of(trust), view(trust)));
}

std::int64_t bind_observe(const Array<std::int64_t>& tokens, const Array<std::int32_t>& parents,
                          const Array<std::int32_t>& depths,
                          const std::optional<Array<double>>& scores,
                          const Array<std::int64_t>& emitted, Array<double>& said,
                          Array<double>& seen, Array<double>& tries) {
  const auto writable = [](Array<double>& array) {
    return std::span<double>(array.mutable_data(), static_cast<std::size_t>(array.size()));
  };
  return observe(scored_tree(tokens, parents, depths, scores), view(emitted), shape_of(said),
                 writable(said), writable(seen), writable(tries));
}

py::tuple bind_choose_nodes(const Array<std::int64_t>& offsets, const Array<std::int32_t>& parents,
                            const Array<std::int32_t>& depths, const Array<double>& scores,
                            const Array<double>& verify_ms,
                            const std::optional<Array<double>>& draft_ms,
                            const std::optional<Array<std::int64_t>>& max_nodes,
                            const std::optional<Array<std::int64_t>>& max_depths, double max_ms) {
  const StepTimes times{.verify_ms = view(verify_ms),
                        .draft_ms = view(draft_ms),
                        .num_widths = draft_ms ? draft_ms->shape(1) : 0,
                        .max_ms = max_ms};
  const Chosen chosen = choose_nodes({view(offsets), view(parents), view(depths), view(scores)},
                                     times, {view(max_nodes), view(max_depths)});
  py::array_t<bool> kept(static_cast<py::ssize_t>(chosen.kept.size()));
  std::copy(chosen.kept.begin(), chosen.kept.end(), kept.mutable_data());
  return py::make_tuple(kept, chosen.depth, chosen.rows, chosen.tokens, chosen.ms);
}

}  // namespace

void bind_choose(py::module_& m) {
  m.def("log_chances", &bind_log_chances, py::arg("tokens").noconvert(),
        py::arg("parents").noconvert(), py::arg("depths").noconvert(),
        py::arg("scores").noconvert(), py::arg("trust").noconvert(),
        "Log chances [N] that each path is accepted, by the drafter's word times trust.");
  m.def("observe", &bind_observe, py::arg("tokens").noconvert(), py::arg("parents").noconvert(),
        py::arg("depths").noconvert(), py::arg("scores").noconvert(),
        py::arg("emitted").noconvert(), py::arg("said").noconvert(), py::arg("seen").noconvert(),
        py::arg("tries").noconvert(),
        "Add what became of the children along `emitted`; returns how many the tree holds.");
  m.def("choose_nodes", &bind_choose_nodes, py::arg("offsets").noconvert(),
        py::arg("parents").noconvert(), py::arg("depths").noconvert(),
        py::arg("scores").noconvert(), py::arg("verify_ms").noconvert(),
        py::arg("draft_ms").noconvert(), py::arg("max_nodes").noconvert(),
        py::arg("max_depths").noconvert(), py::arg("max_ms"),
        "The nodes of a batch with most tokens per millisecond.\n"
        "Returns kept [N] bool, depth, rows, tokens and ms.");
}

}  // namespace treeattn::host
