// SPDX-License-Identifier: Apache-2.0
// For tests only: the kernels of csrc/cuda on the host, as torch.ops.treeattn_simt, and the ops'
// checks alone, as torch.ops.treeattn_checks.
#include <Python.h>

#include <algorithm>
#include <array>
#include <bit>

#include "bindings/device/ops.h"
#include "bindings/match.h"
#include "bindings/params.h"
#include "simt/graph.h"
#include "simt/machine.h"
#include "treeattn/check.h"

namespace treeattn::bindings {
namespace {

using AllCounters = std::array<int64_t, sizeof(simt::Counters) / sizeof(int64_t)>;

// What the machine counted since the last call, in the order of the module's COUNTERS.
void take_counters(const Tensor& out) {
  Match match("_counters");
  const AllCounters all = std::bit_cast<AllCounters>(simt::counters);
  match.bind("num_counters", static_cast<int64_t>(all.size()));
  match(out, "out", {"num_counters"}, {ScalarType::Long});
  match.packed_from(out, "out", 0);
  std::copy(all.begin(), all.end(), mutable_data<int64_t>(out));
  simt::counters = {};
}

// What ops queue between _begin_capture and _end_capture runs at each _replay. The CPU tensor that
// each takes only makes torch send the call here.
void begin_capture(const Tensor&) { simt::begin_capture(); }
void end_capture(const Tensor&) { simt::end_capture(); }
void replay(const Tensor&) {
  TREEATTN_CHECK(simt::replay() == cudaSuccess, "_replay: ", simt::fault());
}

// The checks of an op and nothing more, for calls with a meta tensor, which stands for another
// device that every machine has.
template <auto kParams>
struct CheckedOp;
template <class Params, class... Args, Params (*kParams)(Args...)>
struct CheckedOp<kParams> {
  static void run(Args... args) { kParams(args...); }
};

PyObject* counter_names() {
  PyObject* names = PyList_New(0);
  const auto append = [names](const char* name) {
    PyObject* text = PyUnicode_FromString(name);
    PyList_Append(names, text);
    Py_DECREF(text);
  };
  for (const char* name : simt::kMachineCounterNames) append(name);
  for (const char* name : cuda::kCounterNames) append(name);
  return names;
}

}  // namespace
}  // namespace treeattn::bindings

STABLE_TORCH_LIBRARY(treeattn_simt, m) {
  treeattn::bindings::define_ops(m);
  m.def("_counters(Tensor(a!) out) -> ()");
  m.def("_begin_capture(Tensor cpu) -> ()");
  m.def("_end_capture(Tensor cpu) -> ()");
  m.def("_replay(Tensor cpu) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(treeattn_simt, CPU, m) {
  treeattn::bindings::implement_device_ops(m);
  m.impl("_counters", TORCH_BOX(&treeattn::bindings::take_counters));
  m.impl("_begin_capture", TORCH_BOX(&treeattn::bindings::begin_capture));
  m.impl("_end_capture", TORCH_BOX(&treeattn::bindings::end_capture));
  m.impl("_replay", TORCH_BOX(&treeattn::bindings::replay));
}

// A library of its own: torch.compile takes meta kernels for shape functions, whose tensors hold no
// memory that a check could look at.
STABLE_TORCH_LIBRARY(treeattn_checks, m) { treeattn::bindings::define_ops(m); }

STABLE_TORCH_LIBRARY_IMPL(treeattn_checks, Meta, m) {
  using namespace treeattn::bindings;
  m.impl("plan_tree", TORCH_BOX(&CheckedOp<&plan_tree_params>::run));
  m.impl("write_kv", TORCH_BOX(&CheckedOp<&write_kv_params>::run));
  m.impl("tree_attention", TORCH_BOX(&CheckedOp<&tree_attention_params>::run));
  m.impl("accept_path", TORCH_BOX(&CheckedOp<&accept_path_params>::run));
  m.impl("remap_kv", TORCH_BOX(&CheckedOp<&remap_kv_params>::run));
  m.impl("merge_states", TORCH_BOX(&CheckedOp<&merge_states_params>::run));
}

static PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_simt",
    .m_doc = "Importing this module registers torch.ops.treeattn_simt and treeattn_checks.",
    .m_size = -1,
    .m_methods = nullptr,
    .m_slots = nullptr,
    .m_traverse = nullptr,
    .m_clear = nullptr,
    .m_free = nullptr,
};

PyMODINIT_FUNC PyInit__simt() {
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  PyObject* names = treeattn::bindings::counter_names();
  if (PyModule_AddObjectRef(module, "COUNTERS", names) != 0) {
    Py_DECREF(module);
    module = nullptr;
  }
  Py_DECREF(names);
  return module;
}
