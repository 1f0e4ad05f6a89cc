// SPDX-License-Identifier: Apache-2.0
// The pybind11 module `treeattn._host`: C++ classes that hold no tensors.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_host, m) { m.doc() = "Host-side data structures of treeattn."; }
