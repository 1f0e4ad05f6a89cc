// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "host/bindings.h"
#include "host/choose_nodes.h"
#include "host/learned.h"
#include "treeattn/check.h"

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

// What else one node too many or too few would read past the end of.
void check_size(const char* name, std::size_t size, std::size_t expected) {
  TREEATTN_CHECK(size == expected, name, " must have ", expected, " entries, got ", size);
}

// Parents come before their children, within the nodes of one request.
void check_nodes(std::span<const std::int32_t> parents, std::span<const std::int32_t> depths) {
  check_size("depths", depths.size(), parents.size());
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const std::int64_t parent = parents[i];
    TREEATTN_CHECK(i == 0 || (parent >= 0 && parent < static_cast<std::int64_t>(i)), "parents[", i,
                   "] must be in [0, ", i, "), got ", parent);
    const std::int32_t depth = i == 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
    TREEATTN_CHECK(depths[i] == depth, "depths[", i, "] must be ", depth, ", got ", depths[i]);
  }
}

ScoredTree scored_tree(const Array<std::int64_t>& tokens, const Array<std::int32_t>& parents,
                       const Array<std::int32_t>& depths,
                       const std::optional<Array<double>>& scores) {
  const ScoredTree tree{.tokens = view(tokens),
                        .parents = view(parents),
                        .depths = view(depths),
                        .scores = view(scores)};
  check_nodes(tree.parents, tree.depths);
  check_size("tokens", tree.tokens.size(), tree.parents.size());
  if (scores) check_size("scores", tree.scores.size(), tree.parents.size());
  return tree;
}

TableShape shape_of(const char* name, const Array<double>& table) {
  TREEATTN_CHECK(table.ndim() == 2 && table.size() > 0, name,
                 " must be [depths, ranks], both at least 1");
  return {.depths = static_cast<std::int32_t>(table.shape(0)),
          .ranks = static_cast<std::int32_t>(table.shape(1))};
}

py::array_t<double> bind_log_chances(const Array<std::int64_t>& tokens,
                                     const Array<std::int32_t>& parents,
                                     const Array<std::int32_t>& depths,
                                     const std::optional<Array<double>>& scores,
                                     const Array<double>& trust) {
  return as_array(log_chances(scored_tree(tokens, parents, depths, scores),
                              shape_of("trust", trust), view(trust)));
}

std::int64_t bind_observe(const Array<std::int64_t>& tokens, const Array<std::int32_t>& parents,
                          const Array<std::int32_t>& depths,
                          const std::optional<Array<double>>& scores,
                          const Array<std::int64_t>& emitted, Array<double>& said,
                          Array<double>& seen, Array<double>& tries) {
  const auto writable = [](Array<double>& array) {
    return std::span<double>(array.mutable_data(), static_cast<std::size_t>(array.size()));
  };
  const TableShape shape = shape_of("said", said);
  check_size("seen", view(seen).size(), view(said).size());
  check_size("tries", view(tries).size(), static_cast<std::size_t>(shape.depths));
  TREEATTN_CHECK(emitted.ndim() == 1, "emitted must have one dimension, got ", emitted.ndim());
  return observe(scored_tree(tokens, parents, depths, scores), view(emitted), shape, writable(said),
                 writable(seen), writable(tries));
}

void check_forest(const Forest& forest) {
  const std::size_t num_nodes = forest.parents.size();
  check_size("depths", forest.depths.size(), num_nodes);
  check_size("scores", forest.scores.size(), num_nodes);
  const auto ends = [&](std::int64_t first, std::int64_t last) {
    return first == 0 && last == static_cast<std::int64_t>(num_nodes);
  };
  TREEATTN_CHECK(!forest.offsets.empty() && ends(forest.offsets.front(), forest.offsets.back()) &&
                     std::ranges::is_sorted(forest.offsets),
                 "offsets must ascend from 0 to ", num_nodes);
  for (std::size_t b = 0; b + 1 < forest.offsets.size(); ++b) {
    const auto begin = static_cast<std::size_t>(forest.offsets[b]);
    const std::size_t count = static_cast<std::size_t>(forest.offsets[b + 1]) - begin;
    check_nodes(forest.parents.subspan(begin, count), forest.depths.subspan(begin, count));
  }
  for (std::size_t i = 0; i < num_nodes; ++i) {
    TREEATTN_CHECK(!std::isnan(forest.scores[i]), "scores must be log probabilities, got scores[",
                   i, "] = nan");
  }
}

void check_draft_ms(const Forest& forest, const Array<double>& draft_ms) {
  const auto deepest = std::ranges::max_element(forest.depths);
  const std::int32_t levels = deepest == forest.depths.end() ? 0 : *deepest;
  TREEATTN_CHECK(draft_ms.ndim() == 2 && draft_ms.shape(0) >= levels &&
                     draft_ms.shape(1) > static_cast<py::ssize_t>(forest.parents.size()),
                 "draft_ms must be [levels, widths], at least ", levels,
                 " levels and widths up to ", forest.parents.size());
}

py::tuple bind_choose_nodes(const Array<std::int64_t>& offsets, const Array<std::int32_t>& parents,
                            const Array<std::int32_t>& depths, const Array<double>& scores,
                            const Array<double>& verify_ms,
                            const std::optional<Array<double>>& draft_ms,
                            const std::optional<Array<std::int64_t>>& max_nodes,
                            const std::optional<Array<std::int64_t>>& max_depths, double max_ms) {
  const Forest forest{.offsets = view(offsets),
                      .parents = view(parents),
                      .depths = view(depths),
                      .scores = view(scores)};
  const StepTimes times{.verify_ms = view(verify_ms),
                        .draft_ms = view(draft_ms),
                        .num_widths = draft_ms && draft_ms->ndim() == 2 ? draft_ms->shape(1) : 0,
                        .max_ms = max_ms};
  const Limits limits{.max_nodes = view(max_nodes), .max_depths = view(max_depths)};
  check_forest(forest);
  TREEATTN_CHECK(!times.verify_ms.empty(), "verify_ms must have one entry at least");
  if (draft_ms) check_draft_ms(forest, *draft_ms);
  if (max_nodes) check_size("max_nodes", limits.max_nodes.size(), forest.offsets.size() - 1);
  if (max_depths) check_size("max_depths", limits.max_depths.size(), forest.offsets.size() - 1);
  const Chosen chosen = choose_nodes(forest, times, limits);
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
