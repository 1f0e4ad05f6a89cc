// SPDX-License-Identifier: Apache-2.0
#include "bindings/device/ops.h"

#include <type_traits>

#include "bindings/device/on_device.h"
#include "bindings/device/run.h"
#include "bindings/params.h"
#include "cuda/merge_states/merge_states.h"
#include "cuda/write_kv/write_kv.h"

namespace treeattn::bindings {
namespace {

template <class First, class... Rest>
const Tensor& first_tensor(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<First, Tensor>) {
    return first;
  } else {
    return first_tensor(rest...);
  }
}

// The op as torch calls it. The checks have seen that all tensors lie on one device.
template <auto kParams, auto kRun>
struct DeviceOp;
template <class Params, class... Args, Params (*kParams)(Args...), auto kRun>
struct DeviceOp<kParams, kRun> {
  static void run(Args... args) {
    const Params params = kParams(args...);
    const OnDevice device(first_tensor(args...));
    kRun(params, device.stream());
  }
};

template <auto kParams, auto kRun>
void implement(Library& library, const char* op) {
  library.impl(op, TORCH_BOX((&DeviceOp<kParams, kRun>::run)));
}

}  // namespace

void implement_device_ops(Library& library) {
  implement<&plan_tree_params, &run_plan_tree>(library, "plan_tree");
  implement<&tree_attention_params, &run_tree_attention>(library, "tree_attention");
  implement<&write_kv_params, &cuda::write_kv>(library, "write_kv");
  implement<&accept_path_params, &run_accept_path>(library, "accept_path");
  implement<&remap_kv_params, &run_remap_kv>(library, "remap_kv");
  implement<&merge_states_params, &cuda::merge_states>(library, "merge_states");
}

}  // namespace treeattn::bindings
