// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "host/bindings.h"
#include "host/block_pool.h"

namespace py = pybind11;

namespace treeattn::host {
namespace {

constexpr const char* kPoolDoc =
    "Which KV blocks belong to which sequence: reference counts, copy-on-write, prefix cache.\n\n"
    "num_blocks blocks of block_size tokens. With prefix_cache, full blocks of committed tokens "
    "are\n"
    "shared by later sequences that begin with the same tokens; they stay cached after their last\n"
    "owner is freed, count as free, and are evicted oldest first when no other block is free.\n\n"
    "Sequence ids are non-negative ints. An unknown sequence is a KeyError, lack of blocks is\n"
    "treeattn.OutOfBlocks, any other breach a ValueError; an error changes nothing.";

constexpr const char* kCreateDoc =
    "Start a sequence whose committed tokens are `tokens`.\n\n"
    "Returns the number of leading tokens whose KV is already cached, at most len(tokens) - 1 and "
    "a\n"
    "multiple of block_size; the caller computes the KV of the others.";

constexpr const char* kReserveDoc =
    "Make room for `num_nodes` tokens after the committed ones: a total, not an increment.\n\n"
    "Returns the (src, dst) blocks to copy before writing, because the tail block was shared.";

constexpr const char* kCommitDoc =
    "Append tokens whose KV now lies in the cache: the root, then the accepted path.\n\n"
    "`block_table` is the sequence's row after remap_kv: a permutation of block_table(seq),\n"
    "unchanged on whole committed blocks. The reservation ends; blocks past the new length go "
    "back.";

}  // namespace

void bind_block_pool(py::module_& m) {
  using Tokens = std::vector<std::int64_t>;
  py::class_<BlockPool>(m, "BlockPool", kPoolDoc)
      .def(py::init<std::int64_t, std::int64_t, bool>(), py::arg("num_blocks"),
           py::arg("block_size"), py::arg("prefix_cache") = false)
      .def(
          "create",
          [](BlockPool& pool, std::int64_t seq, const Tokens& tokens) {
            return pool.create(seq, tokens);
          },
          py::arg("seq"), py::arg("tokens"), kCreateDoc)
      .def("reserve", &BlockPool::reserve, py::arg("seq"), py::arg("num_nodes"), kReserveDoc)
      .def(
          "commit",
          [](BlockPool& pool, std::int64_t seq, const Tokens& tokens,
             const std::optional<Tokens>& block_table) { pool.commit(seq, tokens, block_table); },
          py::arg("seq"), py::arg("tokens"), py::arg("block_table") = py::none(), kCommitDoc)
      .def("fork", &BlockPool::fork, py::arg("seq"), py::arg("new_seq"),
           "Start `new_seq` with the committed tokens of `seq`, sharing their blocks. The\n"
           "reservation of `seq` is dropped.")
      .def("free", &BlockPool::free, py::arg("seq"), "Forget a sequence and release its blocks.")
      .def("block_table", &BlockPool::block_table, py::arg("seq"),
           "The blocks of a sequence in order: committed tokens, then the reservation.")
      .def("context_len", &BlockPool::context_len, py::arg("seq"),
           "The number of committed tokens of a sequence.")
      .def("ref_count", &BlockPool::ref_count, py::arg("block"),
           "The number of sequences that own a block.")
      .def("check", &BlockPool::check, "Verify all invariants; RuntimeError on a breach.")
      .def_property_readonly("num_blocks", &BlockPool::num_blocks)
      .def_property_readonly("block_size", &BlockPool::block_size)
      .def_property_readonly("num_free", &BlockPool::num_free,
                             "Blocks without owner, those still cached included.")
      .def_property_readonly("num_used", &BlockPool::num_used, "num_blocks - num_free");
}

}  // namespace treeattn::host
