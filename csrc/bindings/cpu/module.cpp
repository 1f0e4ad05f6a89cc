// SPDX-License-Identifier: Apache-2.0
#include <Python.h>

#include "bindings/cpu/ops.h"
#include "bindings/schemas.h"

STABLE_TORCH_LIBRARY(treeattn, m) {
  treeattn::bindings::define_ops(m);
  // For the benchmarks: what this machine can do at most, one entry of the result per thread.
  m.def("_calibrate_flops(bool dots, int rounds, Tensor(a!) flops) -> ()");
  m.def("_calibrate_read(Tensor data, Tensor(a!) sums) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(treeattn, CPU, m) {
  using namespace treeattn::bindings;
  m.impl("plan_tree", TORCH_BOX(&CpuOp<&plan_tree_params>::run));
  m.impl("write_kv", TORCH_BOX(&CpuOp<&write_kv_params>::run));
  m.impl("tree_attention", TORCH_BOX(&CpuOp<&tree_attention_params>::run));
  m.impl("accept_path", TORCH_BOX(&CpuOp<&accept_path_params>::run));
  m.impl("remap_kv", TORCH_BOX(&CpuOp<&remap_kv_params>::run));
  m.impl("merge_states", TORCH_BOX(&CpuOp<&merge_states_params>::run));
  m.impl("_calibrate_flops", TORCH_BOX(&calibrate_flops));
  m.impl("_calibrate_read", TORCH_BOX(&calibrate_read));
}

static PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_C",
    .m_doc = "Importing this module registers torch.ops.treeattn.",
    .m_size = -1,
    .m_methods = nullptr,
    .m_slots = nullptr,
    .m_traverse = nullptr,
    .m_clear = nullptr,
    .m_free = nullptr,
};

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module_definition); }
