// SPDX-License-Identifier: Apache-2.0
#include <Python.h>

#include "bindings/device/ops.h"

STABLE_TORCH_LIBRARY_IMPL(treeattn, CUDA, m) { treeattn::bindings::implement_device_ops(m); }

static PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_cuda",
    .m_doc = "Importing this module gives torch.ops.treeattn its CUDA kernels.",
    .m_size = -1,
    .m_methods = nullptr,
    .m_slots = nullptr,
    .m_traverse = nullptr,
    .m_clear = nullptr,
    .m_free = nullptr,
};

// ARCHS is the TORCH_CUDA_ARCH_LIST that the kernels were compiled for.
PyMODINIT_FUNC PyInit__cuda() {
  PyObject* module = PyModule_Create(&module_definition);
  if (module != nullptr && PyModule_AddStringConstant(module, "ARCHS", TREEATTN_CUDA_ARCHS) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
