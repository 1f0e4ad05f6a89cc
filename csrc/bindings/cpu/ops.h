// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings/params.h"

// The CPU ops: values are checked in full, then torch's threads run the kernel.
namespace treeattn::bindings {

void run_on_cpu(const PlanTreeCall& call);
void run_on_cpu(const WriteKvParams& p);
void run_on_cpu(const TreeAttentionCall& call);
void run_on_cpu(const AcceptPathCall& call);
void run_on_cpu(const RemapKvCall& call);
void run_on_cpu(const MergeStatesParams& p);

void calibrate_flops(bool dots, int64_t rounds, Tensor flops);

void calibrate_read(Tensor data, Tensor sums);

// The op as torch calls it.
template <auto kParams>
struct CpuOp;
template <class Params, class... Args, Params (*kParams)(Args...)>
struct CpuOp<kParams> {
  static void run(Args... args) { run_on_cpu(kParams(args...)); }
};

}  // namespace treeattn::bindings
