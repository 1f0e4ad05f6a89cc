// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace treeattn::simt {

// One line of execution with its own stack.
struct Context {
  void* stack_pointer = nullptr;
  char* stack =
      nullptr;  // lowest address; nullptr for the thread that called us, until it is known
  size_t stack_bytes = 0;
  void* shadow_frames = nullptr;  // AddressSanitizer's
};

// Saves where `from` is and goes on in `to`. A context that `ends` is never switched to again.
void switch_context(Context& from, Context& to, bool ends);

// The first act of `entry` in prepare(): tells sanitizers that the switch from `from` is complete.
void begin_context(Context& from);

// Stacks with a guard page below each, made once and used again for every CTA.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  void reserve(size_t count);
  // Points `context` to the start of `entry` on stack `index`. entry must not return.
  void prepare(size_t index, Context& context, void (*entry)()) const;
  // After contexts were dropped in mid-run: forgets what sanitizers know of their frames.
  void wipe() const;

 private:
  std::vector<char*> stacks_;
};

}  // namespace treeattn::simt
