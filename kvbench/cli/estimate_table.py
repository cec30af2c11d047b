"""An estimate of KV memory, as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench.cli.estimate import Estimate, Fit
from kvbench.units import format_bytes


def render(made: Estimate, console: Console) -> None:
    """Print the figures, the growth with context, and what they mean."""
    console.print(f"[bold]{escape(made.model)}[/bold]  {made.kind.replace('_', ' ')}, cache in {made.dtype}")
    console.print(f"shape from {escape(made.source)}", style="dim")
    if made.tensor_parallel > 1:
        console.print(f"all sizes are those of one of {made.tensor_parallel} tensor-parallel ranks", style="dim")
    if made.note:
        console.print(escape(made.note), style="dim")
    if made.context > made.max_context:
        console.print(f"the model's longest context is {made.max_context:,} tokens", style="yellow")
    console.print()
    console.print(_figures(made))
    console.print()
    console.print(_growth(made))
    for line in _conclusions(made):
        console.print(line)


def _figures(made: Estimate) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row("KV cache per token", f"{made.bytes_per_token:,} bytes", format_bytes(made.bytes_per_token))
    if made.bytes_per_token_at_first != made.bytes_per_token:
        at_first = made.bytes_per_token_at_first
        table.add_row("  until the windows are full", f"{at_first:,} bytes", format_bytes(at_first))
    table.add_row("  per block", format_bytes(made.bytes_per_block), f"{made.block_size} tokens in all layers")
    if made.state_bytes:
        table.add_row("  state", format_bytes(made.state_bytes), "a sequence, whatever its length")
    table.add_row("  per sequence", format_bytes(made.bytes_per_sequence), f"{made.context:,} tokens")
    table.add_row(
        "  in whole blocks",
        format_bytes(made.paged_bytes_per_sequence),
        f"{made.rounding_share:.3%} of it holds no token",
    )
    if made.batch > 1:
        table.add_row("  per batch", format_bytes(made.bytes_for_batch), f"{made.batch:,} sequences, nothing shared")
    if made.weight_bytes is None:
        table.add_row("weights", "unknown", "no parameter count that we are sure of")
    else:
        table.add_row("weights", format_bytes(made.weight_bytes), f"{made.weight_bytes / 1e9:,.4g} GB")
        if made.parameters is not None:
            table.add_row("  parameters", f"{made.parameters / 1e9:,.4g} billion", escape(made.parameters_source or ""))
    return table


def _growth(made: Estimate) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("context", justify="right")
    table.add_column("KV cache of one sequence", justify="right")
    if made.weight_bytes is not None:
        table.add_column("of the weights", justify="right")
    for row in made.growth:
        shares = () if row.of_weights is None else (f"{row.of_weights:.1%}",)
        table.add_row(f"{row.context:,}", format_bytes(row.bytes), *shares)
    return table


def _conclusions(made: Estimate) -> list[str]:
    lines = []
    if made.sequences_per_weights is not None:
        share = made.bytes_for_batch / (made.weight_bytes or 1)
        sequences = "1 sequence" if made.batch == 1 else f"{made.batch:,} sequences"
        lines += ["", f"{sequences} of {made.context:,} tokens: the cache is {share:,.3g} times the weights."]
        if made.sequences_per_weights > 1:
            lines.append(f"It outgrows the weights at {made.sequences_per_weights:,.1f} such sequences.")
    if made.fit is not None:
        lines += ["", *_fit(made, made.fit)]
    return lines


def _fit(made: Estimate, fit: Fit) -> list[str]:
    beside = "beside the weights" if fit.weights_known else "(weights unknown, not taken off)"
    wanted = "" if fit.paged >= made.batch else f"; [yellow]{made.batch:,} were asked for[/yellow]"
    return [
        f"{fit.gpu_memory / 1e9:,.4g} GB of memory leave {format_bytes(fit.free_bytes)} {beside}, before activations:",
        f"  {fit.paged:,} sequences of {made.context:,} tokens fit in blocks of {made.block_size}{wanted}",
        f"  {fit.reserved:,} fit where each reserves {made.max_context:,} tokens in every layer",
    ]
