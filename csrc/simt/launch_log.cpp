// SPDX-License-Identifier: Apache-2.0
#include "simt/launch_log.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace treeattn::simt {

void log_launch(const void* kernel, int64_t num_threads, size_t shared_bytes) {
  const char* path = std::getenv("TREEATTN_SIMT_LAUNCHES");
  if (path == nullptr) return;
  Dl_info module;
  if (dladdr(kernel, &module) == 0) {
    throw std::runtime_error("a kernel that lies in no module cannot be logged");
  }
  std::ofstream log(path, std::ios::app);
  log << module.dli_fname << '\t'
      << static_cast<const char*>(kernel) - static_cast<const char*>(module.dli_fbase) << '\t'
      << num_threads << '\t' << shared_bytes << '\n';
  if (!log.flush()) {
    throw std::runtime_error(std::string("TREEATTN_SIMT_LAUNCHES: cannot write ") + path);
  }
}

}  // namespace treeattn::simt
