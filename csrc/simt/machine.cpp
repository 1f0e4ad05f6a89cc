// SPDX-License-Identifier: Apache-2.0
#include "simt/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>

#include "simt/fiber.h"
#include "simt/order.h"

// Where the thread that runs now stands. Set at each switch.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace treeattn::simt {

Counters counters;

namespace {

constexpr int kPoison = 0xFF;  // a NaN in every float format
constexpr size_t kCopyBytes = 16;

struct AsyncCopy {
  char* shared;
  const char* global;
  int64_t group;
};

struct Thread {
  Context context;
  uint3 index;
  bool ended;
  const char* waits_for;
  Site site;
  void* brought;
  int64_t open_group;  // of cp.async, counted from 0
  size_t num_landed;
  std::vector<AsyncCopy> copies;  // keeps its capacity
};

// A collective that some lanes have come to and others have not yet.
struct Meeting {
  Complete complete;
  uint32_t mask;
  uint32_t arrived;
  Site site;
};

struct Warp {
  int num_meetings;
  std::array<Meeting, kWarpSize> meetings;  // of disjoint lanes
};

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string text(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

std::string text(const Site& site) {
  return std::string(site.function_name()) + " (" + site.file_name() + ":" +
         std::to_string(site.line()) + ")";
}

struct FreeAligned {
  void operator()(char* memory) const { std::free(memory); }
};

void thread_entry();

class Machine {
 public:
  bool run(const Launch& launch) {
    launch_ = &launch;
    fault_.clear();
    num_threads_ = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    num_warps_ = (num_threads_ + kWarpSize - 1) / kWarpSize;
    stacks_.reserve(num_threads_);
    if (threads_.size() < static_cast<size_t>(num_threads_)) threads_.resize(num_threads_);
    // Exactly as large as asked for, so that AddressSanitizer sees the first byte past it.
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, launch.shared_bytes) != 0) throw std::bad_alloc();
    shared_.reset(static_cast<char*>(memory));
    ::blockDim = dim3(launch.block.x, launch.block.y, launch.block.z);
    ::gridDim = dim3(launch.grid.x, launch.grid.y, launch.grid.z);
    order_.start();
    const int64_t num_ctas = int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    order_.shuffle(num_ctas, ctas_);
    ++counters.launches;
    for (int64_t cta : ctas_) {
      const auto index = static_cast<uint64_t>(cta);
      ::blockIdx = {static_cast<unsigned>(index % launch.grid.x),
                    static_cast<unsigned>(index / launch.grid.x % launch.grid.y),
                    static_cast<unsigned>(index / launch.grid.x / launch.grid.y)};
      run_cta();
      if (!fault_.empty()) break;
    }
    shared_.reset();
    return fault_.empty();
  }

  const std::string& fault() const { return fault_; }

  [[noreturn]] void run_thread() {
    begin_context(main_);
    // Leaves the handler before the switch: the list of caught exceptions is one per host thread.
    try {
      launch_->invoke(launch_->call);
    } catch (const std::exception& error) {
      fault_ = error.what();
    }
    self_->ended = true;
    --num_live_;
    go_on();
    __builtin_unreachable();
  }

  int lane() const { return static_cast<int>((self_ - threads_.data()) % kWarpSize); }

  void meet(const char* what, uint32_t mask, Complete complete, void* brought, const Site& site) {
    const int64_t index = self_ - threads_.data();
    Warp& warp = warps_[index / kWarpSize];
    const uint32_t bit = 1u << index % kWarpSize;
    if (!(mask & bit)) fail(site, std::string(what) + ": the mask leaves out the caller");
    self_->waits_for = what;
    self_->site = site;
    self_->brought = brought;
    int m = 0;
    while (m < warp.num_meetings &&
           !(warp.meetings[m].mask == mask && warp.meetings[m].complete == complete &&
             same(warp.meetings[m].site, site))) {
      ++m;
    }
    if (m == warp.num_meetings) warp.meetings[warp.num_meetings++] = {complete, mask, 0, site};
    Meeting& meeting = warp.meetings[m];
    meeting.arrived |= bit;
    if (meeting.arrived == mask) {
      void* all[kWarpSize];
      Thread* lanes = &threads_[index / kWarpSize * kWarpSize];
      for (int i = 0; i < kWarpSize; ++i) all[i] = mask >> i & 1 ? lanes[i].brought : nullptr;
      meeting = warp.meetings[--warp.num_meetings];
      complete(all, mask, site);
      make_ready(index / kWarpSize, mask);
    }
    go_on();
  }

  void sync_threads(const Site& site) {
    self_->waits_for = "__syncthreads";
    self_->site = site;
    // Whoever waits elsewhere is not counted: then nobody leaves, and the launch fails.
    if (num_at_barrier_ == 0) barrier_ = site;
    if (same(barrier_, site)) ++num_at_barrier_;
    if (num_at_barrier_ == num_threads_) {
      num_at_barrier_ = 0;
      ++counters.barriers;
      make_all_ready();
    }
    go_on();
  }

  void preempt() {
    if (!order_.is_random()) return;
    const int64_t index = self_ - threads_.data();
    make_ready(index / kWarpSize, 1u << index % kWarpSize);
    go_on();
  }

  [[noreturn]] void fail(const Site& site, const std::string& message) const {
    throw std::runtime_error("thread " + text(self_->index) + " of CTA " + text(::blockIdx) + ": " +
                             message + ", in " + text(site));
  }

  char* shared() const { return shared_.get(); }
  size_t shared_bytes() const { return launch_->shared_bytes; }

  void async_copy(char* shared, const char* global) {
    std::memset(shared, kPoison, kCopyBytes);
    self_->copies.push_back({shared, global, self_->open_group});
    if (global != nullptr) counters.global_bytes_read += kCopyBytes;
  }
  void async_commit() { ++self_->open_group; }
  void async_wait(int pending) {
    std::vector<AsyncCopy>& copies = self_->copies;
    size_t& i = self_->num_landed;
    for (; i < copies.size() && copies[i].group + pending < self_->open_group; ++i) {
      if (copies[i].global == nullptr) {
        std::memset(copies[i].shared, 0, kCopyBytes);
      } else {
        std::memcpy(copies[i].shared, copies[i].global, kCopyBytes);
      }
    }
    if (i == copies.size()) {
      copies.clear();
      i = 0;
    }
  }

 private:
  void run_cta() {
    ++counters.ctas;
    if (launch_->shared_bytes > 0) std::memset(shared_.get(), kPoison, launch_->shared_bytes);
    const uint3& block = launch_->block;
    for (int i = 0; i < num_threads_; ++i) {
      Thread& thread = threads_[i];
      const auto index = static_cast<unsigned>(i);
      thread.index = {index % block.x, index / block.x % block.y, index / block.x / block.y};
      thread.ended = false;
      thread.open_group = 0;
      thread.num_landed = 0;
      thread.copies.clear();
      stacks_.prepare(i, thread.context, thread_entry);
    }
    for (int w = 0; w < num_warps_; ++w) warps_[w].num_meetings = 0;
    num_at_barrier_ = 0;
    num_live_ = num_threads_;
    make_all_ready();
    self_ = &main_thread_;
    go_on();
    if (fault_.empty() && num_live_ > 0) fault_ = divergence();
    if (!fault_.empty()) stacks_.wipe();
  }

  void make_ready(int64_t warp, uint32_t lanes) {
    ready_[warp] |= lanes;
    ready_warps_ |= 1u << warp;
  }

  void make_all_ready() {
    ready_warps_ = 0;
    ready_.fill(0);
    for (int first = 0; first < num_threads_; first += kWarpSize) {
      const int lanes = std::min(num_threads_ - first, kWarpSize);
      make_ready(first / kWarpSize, ~0u >> (kWarpSize - lanes));
    }
  }

  // Lets the next thread run, or whoever launched when nobody can.
  void go_on() {
    Thread* from = self_;
    Context& leaves = from == &main_thread_ ? main_ : from->context;
    const bool ends = from != &main_thread_ && from->ended;
    const int next = fault_.empty() ? pick() : -1;
    if (next < 0) {
      self_ = &main_thread_;
      switch_context(leaves, main_, ends);
      return;
    }
    Thread& to = threads_[next];
    if (&to == from) return;
    self_ = &to;
    ::threadIdx = to.index;
    switch_context(leaves, to.context, ends);
  }

  // A ready thread, which is then no longer ready; -1 when there is none.
  int pick() {
    if (ready_warps_ == 0) return -1;
    const int warp = order_.pick(ready_warps_);
    const int lane = order_.pick(ready_[warp]);
    ready_[warp] &= ~(1u << lane);
    if (ready_[warp] == 0) ready_warps_ &= ~(1u << warp);
    return warp * kWarpSize + lane;
  }

  std::string divergence() const {
    struct Group {
      const Thread* first;
      int count;
    };
    std::vector<Group> groups;
    for (int i = 0; i < num_threads_; ++i) {
      const Thread& thread = threads_[i];
      const auto fits = [&](const Group& group) {
        return group.first->ended == thread.ended &&
               (thread.ended || (group.first->waits_for == thread.waits_for &&
                                 same(group.first->site, thread.site)));
      };
      bool found = false;
      for (Group& group : groups) {
        if (!fits(group)) continue;
        ++group.count;
        found = true;
        break;
      }
      if (!found) groups.push_back({&thread, 1});
    }
    std::string message = "CTA " + text(::blockIdx) + " cannot go on:";
    for (const Group& group : groups) {
      message += (&group == groups.data() ? " " : "; ") + std::to_string(group.count) +
                 " threads from " + text(group.first->index) + " on ";
      message += group.first->ended ? std::string("have ended")
                                    : std::string("wait in ") + group.first->waits_for + " of " +
                                          text(group.first->site);
    }
    return message;
  }

  const Launch* launch_ = nullptr;
  int num_threads_ = 0;
  int num_warps_ = 0;
  int num_live_ = 0;
  int num_at_barrier_ = 0;
  Site barrier_;
  Order order_;
  Thread* self_ = nullptr;
  Thread main_thread_{};  // only its address is used
  Context main_;
  std::string fault_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::array<Warp, kMaxWarps> warps_{};
  std::array<uint32_t, kMaxWarps> ready_{};  // lanes of each warp
  uint32_t ready_warps_ = 0;                 // those with a ready lane
  static_assert(kMaxWarps <= 32);
  std::vector<int64_t> ctas_;
  std::unique_ptr<char, FreeAligned> shared_;
};

Machine machine;
std::mutex machine_in_use;

void thread_entry() { machine.run_thread(); }

}  // namespace

bool run(const Launch& launch) {
  const std::lock_guard lock(machine_in_use);
  return machine.run(launch);
}
const std::string& fault() { return machine.fault(); }

int lane() { return machine.lane(); }
void fail(const Site& site, const std::string& message) { machine.fail(site, message); }
void meet(const char* what, uint32_t mask, Complete complete, void* brought, const Site& site) {
  machine.meet(what, mask, complete, brought, site);
}
void sync_threads(const Site& site) { machine.sync_threads(site); }
void preempt() { machine.preempt(); }

char* shared_memory() { return machine.shared(); }
bool in_shared(const void* pointer, size_t bytes) {
  const auto offset =
      reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(machine.shared());
  return offset <= machine.shared_bytes() && bytes <= machine.shared_bytes() - offset;
}
bool outside_shared(const void* pointer, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  const auto shared = reinterpret_cast<uintptr_t>(machine.shared());
  return begin + bytes <= shared || begin >= shared + machine.shared_bytes();
}

void async_copy(char* shared, const char* global) { machine.async_copy(shared, global); }
void async_commit() { machine.async_commit(); }
void async_wait(int pending) { machine.async_wait(pending); }

}  // namespace treeattn::simt
