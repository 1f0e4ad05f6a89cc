// SPDX-License-Identifier: Apache-2.0
#include "host/bindings.h"
#include "host/errors.h"

namespace py = pybind11;

namespace treeattn::host {

void bind_errors(py::module_& m) {
  const auto out_of_blocks =
      py::register_exception<OutOfBlocks>(m, "OutOfBlocks", PyExc_RuntimeError);
  const auto unknown_sequence = py::register_exception<UnknownSequence>(
      m, "UnknownSequence",
      py::make_tuple(py::handle(PyExc_KeyError), py::handle(PyExc_ValueError)));
  out_of_blocks.attr("__module__") = "treeattn.kv_cache";
  unknown_sequence.attr("__module__") = "treeattn.kv_cache";
}

}  // namespace treeattn::host
