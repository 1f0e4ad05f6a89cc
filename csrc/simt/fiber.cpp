// SPDX-License-Identifier: Apache-2.0
#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// void treeattn_simt_switch(void** save, void* load): pushes the registers that a callee keeps,
// stores the stack pointer to *save, takes `load` for it, pops the same registers and returns
// there.
#if defined(__x86_64__)
asm(R"(
.text
.hidden treeattn_simt_switch
.globl treeattn_simt_switch
.type treeattn_simt_switch, @function
treeattn_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size treeattn_simt_switch, . - treeattn_simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden treeattn_simt_switch
.globl treeattn_simt_switch
.type treeattn_simt_switch, %function
treeattn_simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size treeattn_simt_switch, . - treeattn_simt_switch
)");
#else
#error "csrc/simt knows how to switch stacks on x86-64 and aarch64 only"
#endif
extern "C" void treeattn_simt_switch(void** save, void* load);

namespace treeattn::simt {
namespace {

constexpr size_t kPageBytes = 4096;
// Instrumented frames are several times larger.
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

}  // namespace

void switch_context(Context& from, Context& to, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.shadow_frames, to.stack, to.stack_bytes);
#endif
  treeattn_simt_switch(&from.stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.shadow_frames, nullptr, nullptr);
#endif
}

void begin_context([[maybe_unused]] Context& from) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (from.stack == nullptr) {
    from.stack = const_cast<char*>(static_cast<const char*>(stack));
    from.stack_bytes = bytes;
  }
#endif
}

Stacks::~Stacks() {
  for (char* stack : stacks_) munmap(stack - kPageBytes, kPageBytes + kStackBytes);
}

void Stacks::reserve(size_t count) {
  while (stacks_.size() < count) {
    void* memory = mmap(nullptr, kPageBytes + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, kPageBytes, PROT_NONE);
    stacks_.push_back(static_cast<char*>(memory) + kPageBytes);
  }
}

void Stacks::prepare(size_t index, Context& context, void (*entry)()) const {
  context.stack = stacks_[index];
  context.stack_bytes = kStackBytes;
  // Tops that are not a multiple of the page apart: else the hot frames of all threads would meet
  // in the same few sets of the cache.
  constexpr size_t kLine = 64, kLinesPerPage = kPageBytes / kLine;
  char* top = context.stack + kStackBytes - index * 5 % kLinesPerPage * kLine - kLine;
  void** slot = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--slot = nullptr;  // entry's return address, so that the stack is as after a call
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
#else
  constexpr int kSavedWords = 20, kLinkRegister = 11;
  slot -= kSavedWords;
  for (int i = 0; i < kSavedWords; ++i) slot[i] = nullptr;
  slot[kLinkRegister] = reinterpret_cast<void*>(entry);
#endif
  context.stack_pointer = slot;
}

void Stacks::wipe() const {
#if defined(__SANITIZE_ADDRESS__)
  for (char* stack : stacks_) __asan_unpoison_memory_region(stack, kStackBytes);
#endif
}

}  // namespace treeattn::simt
