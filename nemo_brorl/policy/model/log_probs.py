"""Compute log-prob, entropy and collision mass of each response token without ever storing all logits.

Megatron's cross entropies (0.16.1) cannot be used. They count the padded vocabulary in the normaliser. One overwrites
the logits, and the other rounds its gradient to bf16.

The output layer is part of the function. Forward walks over tiles of `chunk` tokens by some columns of the vocabulary
and keeps a few numbers per token: the online softmax of arXiv 1805.02867, with two more sums. Backward computes the
logits of each tile again. A tile fits into the processor's cache, so this is faster than whole rows of logits, and the
memory does not depend on the vocabulary. Logits are float32 whatever the weights are in: bf16 has steps of 0.125
between 16 and 32, an error of 0.03 nats.

Legend: n tokens, h hidden size, v vocabulary rows of this tensor-parallel rank (padding included), c tokens of a chunk,
w columns of a tile.

Sums are float32, whatever their terms are in: those of matrix products, and of the gradients of a row that was taken
more than once.

On GPUs memory is slower than the products. There torch compiles one pass each over a tile (`add_tile`,
`tile_gradient`). Step by step in place, as on CPU, a tile would be read and written some fifteen times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.policy.process.device import compiled, fix_sizes

# Logits of a tile, c * w. On CPU 4 MiB, for a core's cache. On a GPU 512 MiB: ten tiles for a chunk of 8,192 tokens,
# with a few kernel launches each.
_TILE_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 27}
_LOWEST = torch.finfo(torch.float32).min


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right in float32, for two matrices of one format."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total` in float32, for two matrices of one format."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return the rows `index` [n] int64 of a table [T, h], as [n, h].

    The last token of a prompt predicts the first one of every response that shares it. On a GPU torch's own gradient
    adds such rows one by one in the table's format (`index_add_`), and in bf16 a sum of ones ends at 256. Here they are
    added in float32.
    """
    return _TakeRows.apply(table, index)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = len(table)
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.num_rows, grad.size(1), dtype=torch.float32)
        total.index_add_(0, index, grad.float())
        return total.to(grad.dtype), None


class TokenScores(NamedTuple):
    """What softmax(logits / temperature) says of each response token, as three tensors [n] float32.

    The model returns them as one tensor [3, n] in this order, because Megatron's schedules carry one tensor. Unpack it
    by `TokenScores(*output)`.
    """

    log_probs: Tensor  # log-probs of the tokens
    entropies: Tensor  # −Σ p log p over the vocabulary, in nats
    collisions: Tensor  # Σ p², the chance that two draws agree


@dataclass(frozen=True)
class VocabSlice:
    """Rows of the vocabulary that this rank holds: [first, first + num_valid), then padding."""

    first: int
    num_valid: int
    group: dist.ProcessGroup | None  # None: this rank has all of it


def vocab_slice(
    vocab_size: int,
    num_rows: int,
    group: dist.ProcessGroup | None,
) -> VocabSlice:
    """Return the slice of the vocabulary whose `num_rows` rows of the output layer this tensor-parallel rank holds.

    The vocabulary is padded to `num_rows` times the number of ranks in `group`.
    """
    if group is None or group.size() == 1:
        return VocabSlice(0, min(vocab_size, num_rows), None)
    first = group.rank() * num_rows
    num_valid = min(num_rows, vocab_size - first)
    return VocabSlice(first, max(0, num_valid), group)


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab: VocabSlice,
    temperature: float,
    chunk: int,
) -> Tensor:
    """Return log-prob, entropy and collision mass [3, n] of n tokens under softmax(hidden @ weight.T / temperature).

    The scores are float32. Collision mass is Σ p² over the vocabulary. The scores are equal on all tensor-parallel
    ranks. `hidden` [n, h] is equal on all ranks, and its gradient is only this rank's share, which Megatron's
    `copy_to_tensor_model_parallel_region` sums. `weight` is [v, h], `targets` [n] int64, `chunk` the number of tokens
    computed together. All three scores have a gradient. The gradient of a weight with a buffer (`main_grad` of
    Megatron's DistributedDataParallel) is added there, in float32.
    """
    return _TokenScores.apply(hidden, weight, targets, vocab, temperature, chunk)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        vocab: VocabSlice,
        temperature: float,
        chunk: int,
    ) -> Tensor:
        sums = hidden.new_empty(5, len(targets), dtype=torch.float32)
        for rows in _slices(len(targets), chunk):
            chunk_sums = _sums(hidden[rows], weight, targets[rows], vocab, temperature, chunk)
            sums[:, rows] = chunk_sums
        # The sums are small and each collective waits for all ranks, so one collective serves all chunks.
        if vocab.group is not None:
            sums = _over_ranks(sums, vocab.group)
        largest, total, weighted, squared, target = sums
        log_total = total.log()
        normaliser = largest + log_total
        entropies = log_total - weighted / total
        collisions = squared / total.square()
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropies, collisions)
        ctx.settings = (vocab, temperature, chunk)
        # If Megatron has a buffer for the gradient, the gradient is added there in float32.
        ctx.main_grad = getattr(weight, "main_grad", None)
        scores = TokenScores(target - normaliser, entropies, collisions)
        return torch.stack(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, *per_token = ctx.saved_tensors
        vocab, temperature, chunk = ctx.settings
        # All three scores depend on logits / temperature, so one division serves all tiles.
        grad = grad / temperature
        grad_hidden = torch.empty_like(hidden)
        grad_weight = ctx.main_grad
        if grad_weight is None:
            grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for rows in _slices(len(targets), chunk):
            chunk_grad = TokenScores(*grad[:, rows, None])
            chunk_state = [kept[rows, None] for kept in per_token]
            gradient = _ChunkGradient(targets[rows], chunk_grad, chunk_state)
            # A chunk's gradient is a sum over all tiles of the vocabulary. In bf16 each addition would round.
            total = torch.zeros_like(hidden[rows], dtype=torch.float32)
            for columns in _tiles(len(total), chunk, vocab, hidden.device):
                products = product(hidden[rows], weight[columns].T)
                first = vocab.first + columns.start
                share = gradient.of_products(products, temperature, first, hidden.dtype)
                add_product(total, share, weight[columns])
                add_product(grad_weight[columns], share.T, hidden[rows])
                # Free the tile before the next one is made.
                del products, share
            grad_hidden[rows] = total.to(hidden.dtype)
        if ctx.main_grad is None:
            return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None
        return grad_hidden, _already_added(weight), None, None, None, None


def _already_added(weight: Tensor) -> Tensor:
    """Return a placeholder gradient for a weight whose gradient is already in Megatron's gradient buffer.

    Megatron ignores the placeholder, unless the weight is also the embedding. Then autograd adds the embedding's
    gradient to it.
    """
    weight.grad_added_to_main_grad = True
    if getattr(weight, "zero_out_wgrad", False):
        return torch.zeros_like(weight)
    return torch.empty_like(weight)


class _ChunkGradient(NamedTuple):
    """Everything that the gradient of one chunk's logits is computed from."""

    targets: Tensor  # [c]
    grad: TokenScores  # gradients of the scores, [c, 1] each, divided by the temperature
    per_token: list[Tensor]  # normaliser, entropy and collision mass, [c, 1] each

    def of_products(
        self,
        products: Tensor,
        temperature: float,
        first: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the loss gradient [c, w] of the products hidden @ weight.T [c, w] of c tokens and w vocabulary rows.

        The vocabulary rows are those from `first` on. The products may be overwritten.
        """
        if not products.is_cuda:
            share = self.of_logits(_logits(products, temperature), first)
            return share.to(dtype)
        # A target outside this tile equals no column. Comparing needs no bounds, unlike an index.
        column = (self.targets - first)[:, None]
        gradient = compiled(tile_gradient, temperature=temperature, dtype=dtype)
        return gradient(fix_sizes(products, 1), column, tuple(self.grad), tuple(self.per_token))

    def of_logits(self, logits: Tensor, first: int) -> Tensor:
        """Return the loss gradient [c, w] of the logits [c, w] of c tokens and w vocabulary rows from `first` on.

        The logits are overwritten. Of each token's log-prob, entropy H and collision mass Σ p², the derivatives are d
        log p(t) = 1[t] − p, d H = −p (log p + H) and d Σp² = 2 p (p − Σp²).
        """
        normaliser, entropy, collision = self.per_token
        log_p = logits.sub_(normaliser)
        has_more = self.grad.entropies.any() or self.grad.collisions.any()
        # A loss of log-probs alone does not need the other two terms.
        if has_more:
            p = log_p.exp()
            share = log_p.add_(entropy)
            share.mul_(self.grad.entropies)
            share.add_(self.grad.log_probs)
            share.addcmul_(p - collision, self.grad.collisions, value=-2)
            share.mul_(p).neg_()
        else:
            share = log_p.exp_().mul_(-self.grad.log_probs)
        is_here, column = _find(self.targets, first, share.size(1))
        of_target = self.grad.log_probs * is_here
        return share.scatter_add_(1, column, of_target)


def _slices(num: int, size: int) -> Iterator[slice]:
    for start in range(0, num, size):
        yield slice(start, min(start + size, num))


def _tiles(
    num_tokens: int,
    chunk: int,
    vocab: VocabSlice,
    device: torch.device,
) -> Iterator[slice]:
    """Yield ranges of vocabulary columns whose logits are computed together for `num_tokens` tokens, without padding.

    Such a tile of logits has at most `chunk` tokens. On a GPU the last tokens of a packed row get tiles as wide as
    those of `chunk` tokens, so that kernels are compiled for only two widths.
    """
    num_rows = num_tokens if device.type == "cpu" else chunk
    num_columns = _TILE_LOGITS[device.type] // num_rows
    num_columns = max(64, num_columns)
    return _slices(vocab.num_valid, num_columns)


def _logits(products: Tensor, temperature: float) -> Tensor:
    """Return logits [c, w]: the products hidden @ weight.T divided by the temperature in place."""
    if temperature != 1.0:
        products.div_(temperature)
    return products


def _find(targets: Tensor, first: int, num: int) -> tuple[Tensor, Tensor]:
    """Return whether each of c target tokens is among `num` vocabulary rows from `first` on, and its column there.

    Both are [c, 1]. The column of a target outside these rows is arbitrary.
    """
    column = (targets - first)[:, None]
    is_here = (column >= 0) & (column < num)
    return is_here, column.clamp(0, num - 1)


def _sums(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab: VocabSlice,
    temperature: float,
    chunk: int,
) -> Tensor:
    """Return the softmax sums [5, c] of c tokens over the logits z of this rank's part of the vocabulary.

    They are the largest logit m, then Σ e, Σ (z − m) e and Σ e² with e = exp(z − m), then the target's z, or 0 if
    another rank has it.
    """
    num = len(targets)
    target = hidden.new_zeros(num, dtype=torch.float32)
    # Before any logit, every finite number keeps the sums at zero.
    largest = torch.full_like(target, _LOWEST)
    sums = target.new_zeros(3, num)
    for columns in _tiles(num, chunk, vocab, hidden.device):
        products = product(hidden, weight[columns].T)
        first = vocab.first + columns.start
        if products.is_cuda:
            fused = compiled(add_tile, temperature=temperature)
            column = (targets - first)[:, None]
            largest, sums, target = fused(fix_sizes(products, 1), column, largest, sums, target)
        else:
            logits = _logits(products, temperature)
            is_here, column = _find(targets, first, logits.size(1))
            target_logits = logits.gather(1, column)
            target += torch.where(is_here, target_logits, 0.0)[:, 0]
            largest, sums = _add_tile(logits, largest, sums)
            del logits
        # Free the tile before the next one is made.
        del products
    return torch.stack([largest, *sums, target])


def _add_tile(
    logits: Tensor,
    largest: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the largest logit and the three softmax sums of each token after adding a tile of logits.

    The softmax sums over logits z are Σ e, Σ (z − m) e and Σ e² with e = exp(z − m) and the largest logit m. The tile
    is overwritten.
    """
    larger = torch.maximum(largest, logits.amax(1))
    shifted = logits.sub_(larger[:, None])
    exps = shifted.exp()
    total = exps.sum(1)
    weighted = torch.linalg.vecdot(shifted, exps)
    squared = torch.linalg.vecdot(exps, exps)
    of_tile = torch.stack([total, weighted, squared])
    before = _relative_to(larger, largest, sums)
    return larger, before.add_(of_tile)


def _relative_to(new: Tensor, old: Tensor, sums: Tensor) -> Tensor:
    """Return the softmax sums Σ e, Σ (z − m) e and Σ e² [3, n] of n tokens with m = `new` instead of m = `old`.

    z are the logits and e = exp(z − m). `new` is at least `old`.
    """
    # Before the first logit `old` is the lowest number, so old − new may be minus infinity. exp() is zero long before
    # that, and zero times infinity would be NaN.
    shift = (old - new).clamp(min=-1e4)
    scale = shift.exp()
    total, weighted, squared = sums
    new_total = total * scale
    new_weighted = (weighted + shift * total) * scale
    new_squared = squared * scale.square()
    return torch.stack([new_total, new_weighted, new_squared])


def _over_ranks(sums: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the softmax sums [5, n] of n tokens over the whole vocabulary, from the sums of each tensor-parallel rank.

    Collective: one all-reduce MAX of [n] and one all-reduce SUM of [4, n].
    """
    largest = sums[0].clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    # Each rank's sums are relative to its own largest logit. They can be added only relative to a common one.
    rebased = _relative_to(largest, sums[0], sums[1:4])
    rest = torch.cat([rebased, sums[4:]])
    dist.all_reduce(rest, group=group)
    return torch.cat([largest[None], rest])


def add_tile(
    products: Tensor,
    column: Tensor,
    largest: Tensor,
    sums: Tensor,
    target: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return largest logit [c], softmax sums [3, c] and target's logit [c] of c tokens after adding a tile of logits.

    The softmax sums are those of `_sums`. `products` are hidden @ weight.T [c, w], and `column` [c, 1] is the target's
    column in the tile, if it is there.
    """
    logits = products / temperature
    larger = torch.maximum(largest, logits.amax(1))
    shifted = logits - larger[:, None]
    exps = shifted.exp()
    shift = (largest - larger).clamp(min=-1e4)
    scale = shift.exp()
    total, weighted, squared = sums
    new_total = total * scale + exps.sum(1)
    new_weighted = (weighted + shift * total) * scale
    new_weighted = new_weighted + (shifted * exps).sum(1)
    new_squared = squared * scale.square()
    new_squared = new_squared + exps.square().sum(1)
    target_logits = torch.where(_is_target(products, column), logits, 0.0)
    return larger, torch.stack([new_total, new_weighted, new_squared]), target + target_logits.sum(1)


def tile_gradient(
    products: Tensor,
    column: Tensor,
    grads: tuple[Tensor, ...],
    per_token: tuple[Tensor, ...],
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return the loss gradient of a tile of logits [c, w] in `dtype`, as `_ChunkGradient.of_logits` defines it.

    `grads` are the loss gradients of log-prob, entropy and collision mass. `per_token` are the softmax normaliser,
    entropy and collision mass. All are [c, 1], for c tokens.
    """
    normaliser, entropy, collision = per_token
    of_log_prob, of_entropy, of_collision = grads
    log_p = products / temperature - normaliser
    p = log_p.exp()
    entropy_term = (log_p + entropy) * of_entropy
    collision_term = 2 * (p - collision) * of_collision
    inner = of_log_prob + entropy_term - collision_term
    gradient = torch.where(_is_target(products, column), of_log_prob, 0.0) - p * inner
    return gradient.to(dtype)


def _is_target(products: Tensor, column: Tensor) -> Tensor:
    """Return a mask [c, w] of those entries in a tile of logits that belong to the tokens' targets."""
    return torch.arange(products.size(1), device=products.device) == column
