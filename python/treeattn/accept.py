# SPDX-License-Identifier: Apache-2.0
"""accept_path: the thin wrapper that allocates its results and calls _namespace.ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from treeattn import _library, _namespace
from treeattn.plan import TreePlan, check_index_dtype
from treeattn.sampling import RULE_NAMES, check_draws

Param: TypeAlias = float | Tensor | None

RULES = {name: number for number, name in enumerate(RULE_NAMES)}  # AcceptRule of accept_path.h


@dataclass(frozen=True, eq=False)
class AcceptedPath:
    """What one verify step accepted; B requests, D = the plan's max_depth."""

    path: Tensor  # [B, D + 1] int32 node ids within the request, root first, padded with -1
    num_accepted: Tensor  # [B] int32, the root not counted
    next_tokens: Tensor  # [B] int64, the next root
    status: Tensor  # [B] int32: 0 ok, 1 non-finite, 2 no id left, 3 inactive, 4 invalid
    emitted: Tensor  # [B, D + 1] int64: accepted tokens, then the next token, padded with -1
    logprobs: Tensor | None = None  # [B, D + 1] fp32 raw log-softmax of each emitted token
    processed_logprobs: Tensor | None = None  # likewise, after temperature, `allowed` and filters


def accept_path(
    logits: Tensor,
    tokens: Tensor,
    plan: TreePlan,
    *,
    rule: str = "greedy",
    temperature: Param = None,
    top_k: int | Tensor | None = None,
    top_p: Param = None,
    min_p: Param = None,
    seeds: int | Tensor | None = None,
    draft_probs: Tensor | None = None,
    draft_rows: Tensor | None = None,
    draws: str | Sequence[str | None] | None = None,
    allowed: Tensor | None = None,
    uniforms: Tensor | None = None,
    typical_epsilon: float = 0.3,
    typical_delta: float = 0.09,
    return_logprobs: bool = False,
    draft_logits: Tensor | None = None,
    draft_ids: Tensor | None = None,
    return_processed_logprobs: bool = False,
    counts: Tensor | None = None,
) -> AcceptedPath:
    """Choose each request's accepted path straight from the target's logits.

    logits: [N, V] fp32, bf16 or fp16, row i for the token after node i. tokens: [N] int32 or int64;
    those outside [0, V) are padding, never accepted.

    rule, and the draws of siblings under which the emitted tokens have exactly the target's law:
      "greedy"     argmax walk, lowest id on ties; any draws.
      "target"     draw from the target at the node and follow the child holding the draw, else emit
                   it; any draws.
      "multistep"  SpecInfer's multi-step speculative sampling (2305.09781); "iid".
      "swor"       recursive rejection (Sequoia 2402.12374, RSD 2402.14160); "swor": without
                   replacement, in order.
      "block"      block verification of chains (2403.10444); "iid" or "swor".
      "traversal"  Traversal Verification (2505.12398), which accepts no less than multistep or swor
                   on the same draws; "iid" or "swor".
      "typical"    Medusa's typical acceptance (2401.10774), lossy by design: accepts a token whose
                   probability exceeds min(typical_epsilon, typical_delta * exp(-entropy)); the
                   longest accepted path wins, then the likeliest. The next token is the argmax, or
                   drawn where seeds or uniforms are given.
    draws: how siblings were drawn: `DraftTree.draws`, or `TreeBatch.draws` of the whole batch. The
    op sees no tree, so it believes what it is told; None is "swor" for rule swor, "iid" for
    multistep and block.

    temperature, top_k, top_p, min_p, seeds: scalars or [B] tensors (fp32; top_k int32; seeds
    int64). Order: temperature, allowed, top-k, top-p, min-p; temperature 0 is greedy for that row,
    and nothing else is looked at there. Rule typical knows no filters.
    allowed: [N, ceil(V / 32)] int32 bit mask, LSB first.
    uniforms: [N, 2] fp32 in place of the generator: the coin for trying the node, and the draw made
    at it.

    The rules multistep, swor, block and traversal need the laws that children were drawn from,
    after the drafter's own temperature and filters, as one of
      draft_probs:  [R, Vq] fp32, bf16 or fp16, Vq <= V, taken as they are;
      draft_logits: [R, Vq] likewise, of which the op takes the softmax.
    draft_rows: [N] int32, the row that each node was drawn from; by default its parent's, R = N.
    draft_ids: [Vq] int32 or int64, the target's id of each column, for drafters with a vocabulary
    of their own; by default the column. Ids without a column are never drafted.
    A node whose token its law does not give any probability is never accepted.

    return_logprobs: adds the raw log-softmax of each emitted token, before any of the above.
    return_processed_logprobs: adds its log probability after temperature, allowed and filters, 0
    where the rule is greedy or temperature 0.
    counts: [2, depths, ranks] int64, added to. For each node on an accepted path at depth d,
    counts[0, d, r] counts that it had an r-th child and counts[1, d, r] that this one was accepted,
    so counts[1] / counts[0], where counts[0] > 0, are the chances that `schedule.sequoia_tree` and
    `cost.path_probs` ask for. Requests with
    another status than 0 are left out.

    A draw is the smallest id whose cumulative probability exceeds a uniform number of [0, 1). It is
    keyed by (seed, position of the node, purpose), a coin by (seed, position of the root, ordinal
    of the trial in the step), and by nothing else (Philox4x32-10, csrc/include/treeattn/philox.h).
    So with rule target a seeded request emits the same tokens with any tree and any batch mates.

    Only rows that the walk needs are read where that is cheaper. A bad one ends it: status 1 for
    NaN or +inf at an allowed id or in a draft row, 2 for no id left; what was accepted before
    stays, except that block and traversal accept nothing.

    Raises ValueError for an unknown rule; draws under which it is biased (the message names the
    lossless rules); rule block on what is no chain; siblings of one draft row with one token under
    draws "swor"; where temperature > 0, a stochastic rule without seeds and uniforms, or one that
    needs draft laws without any; temperature < 0 or NaN, top_p <= 0 or NaN, min_p > 1 or NaN;
    draft_rows or draft_ids out of range, draft_ids that repeat.
    """
    draws = check_draws(rule, draws)
    if isinstance(seeds, int) and not -(2**63) <= seeds < 2**63:
        raise ValueError(f"accept_path: seeds must fit in int64, got {seeds}")
    # Allocated like tensors of the plan: half the cost of naming shape, dtype and device. All by
    # one function, because a step comes here with cold caches.
    num_requests, width = plan.num_requests, plan.max_depth + 1
    new_int32, new_int64 = plan.status.new_empty, plan.slot_mapping.new_empty
    path, emitted = new_int32(num_requests, width), new_int64(num_requests, width)
    num_accepted, status = new_int32(num_requests), new_int32(num_requests)
    next_tokens = new_int64(num_requests)
    logprobs, processed_logprobs = (
        logits.new_empty(num_requests, width, dtype=torch.float32) if wanted else None
        for wanted in (return_logprobs, return_processed_logprobs)
    )
    workspace = _workspace(logits, plan, rule, draft_ids)
    if rule == "greedy":
        temperature = top_k = top_p = min_p = seeds = None
    else:
        temperature = _per_request(temperature, torch.float32, plan)
        top_k = _per_request(_as_int32(top_k), torch.int32, plan)
        top_p = _per_request(top_p, torch.float32, plan)
        min_p = _per_request(min_p, torch.float32, plan)
        seeds = _per_request(seeds, torch.int64, plan)
    if draft_ids is not None:
        check_index_dtype("accept_path", "draft_ids", draft_ids)
        draft_ids = draft_ids.to(torch.int64)
    _library.require()
    _namespace.ops.accept_path(
        logits,
        tokens,
        plan.parents,
        plan.node_indptr,
        plan.context_lens,
        plan.depths,
        plan.status,
        plan.max_depth,
        RULES[rule],
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        draft_probs,
        draft_logits,
        draft_rows,
        draft_ids,
        draws == "swor",
        allowed,
        uniforms,
        typical_epsilon,
        typical_delta,
        path,
        num_accepted,
        next_tokens,
        status,
        emitted,
        logprobs,
        processed_logprobs,
        counts,
        workspace,
    )
    return AcceptedPath(
        path, num_accepted, next_tokens, status, emitted, logprobs, processed_logprobs
    )


def _workspace(
    logits: Tensor, plan: TreePlan, rule: str, draft_ids: Tensor | None
) -> Tensor | None:
    """What devices need: accept_path_workspace_size int32 (csrc/cuda/accept_path/accept_path.h)."""
    if not _namespace.runs_on_device(logits):
        return None
    if rule in ("greedy", "target"):
        return plan.parents.new_empty(plan.num_nodes * 4)
    columns = 0 if draft_ids is None else logits.shape[-1]
    return plan.parents.new_empty(plan.num_nodes * 30 + 1 + columns)


def _per_request(value: Param, dtype: torch.dtype, plan: TreePlan) -> Tensor | None:
    """[B], where `value` is one for all requests."""
    if value is None or isinstance(value, Tensor):
        return value
    return plan.status.new_full((plan.num_requests,), value, dtype=dtype)


def _as_int32(count: int | Tensor | None) -> int | Tensor | None:
    """Counts beyond int32 switch a filter off, as any count past the vocabulary does."""
    return max(-1, min(count, 2**31 - 1)) if isinstance(count, int) else count
