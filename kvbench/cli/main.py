"""The command line: parsing, help and exit codes. Each command's work is in a module that is imported when it is run.

Built on argparse, which starts in a few hundredths of a second; `kvbench --help` imports nothing heavy.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kvbench import __version__
from kvbench.cli.console import Output
from kvbench.errors import KvbenchError

EXIT_CODES = """\
exit codes: 0 clean, 1 findings (or a counterexample that reproduces), 2 wrong usage or unreadable input,
3 an adapter could not be started, 130 interrupted (what was measured so far is kept)."""

ADAPTER_HELP = "a name from `kvbench list`, package.module:Class or ./file.py:Class"


class Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        """Print `message` and the way to the help; exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="kvbench",
        description="Benchmark and verification suite for paged KV caches: is it right, what memory does it waste, "
        "what does sharing save, how fast is it.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvbench {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    _add_list(commands)
    _add_verify(commands)
    _add_replay(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_faults(commands)
    _add_estimate(commands)
    _add_pages(commands)
    return parser


def _command(commands: argparse._SubParsersAction[Parser], name: str, module: str, about: str, detail: str) -> Parser:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.\n\n{detail}".rstrip(),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(module=f"kvbench.cli.{module}")
    parser.add_argument("--json", action="store_true", help="print machine-readable output on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, and only what matters")
    return parser


def _add_budget(parser: Parser, default: str = "quick") -> None:
    told = f"quick, standard, deep, or a time such as 30s (default {default})"
    parser.add_argument("--budget", default=default, metavar="B", help=told)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all generated cases (default 0)")


def _add_config(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the adapters that have it, such as precision=f16; may be repeated",
    )


def _add_out(parser: Parser) -> None:
    parser.add_argument("--out", metavar="DIR", help="write records, counterexamples and index.html to this folder")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the results already in --out instead of refusing them"
    )


def _add_list(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "list", "listing", "list adapters, suites, faults, models or traces", "")
    parser.add_argument(
        "what",
        nargs="?",
        default="adapters",
        choices=["adapters", "suites", "faults", "models", "traces"],
        help="what to list (default: adapters); an adapter that cannot run here says why and how to get it",
    )


def _add_verify(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands,
        "verify",
        "verify",
        "check adapters for correctness, lifecycle and prefix sharing",
        "Every check that an adapter's declared capabilities allow is run, in every precision it declares.",
    )
    parser.add_argument("adapters", nargs="+", metavar="ADAPTER", help=ADAPTER_HELP)
    parser.add_argument(
        "--suite", action="append", default=[], metavar="S", help="only this suite or check; may be repeated"
    )
    _add_budget(parser)
    _add_config(parser)
    _add_out(parser)


def _add_replay(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands, "replay", "replay", "run a counterexample again", "Exits with 1 if it reproduces, 0 if it does not."
    )
    parser.add_argument("file", metavar="FILE", help="a file from a result folder's counterexamples/")
    parser.add_argument("--adapter", metavar="A", help="run it on this adapter instead of the one it was found on")


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands,
        "run",
        "run",
        "run one measuring suite",
        "Suites: fragmentation, prefix-sharing, throughput, growth. Traces are built in; no file is needed.",
    )
    parser.add_argument("suite", metavar="SUITE", help="fragmentation, prefix-sharing, throughput or growth")
    parser.add_argument("adapters", nargs="+", metavar="ADAPTER", help=ADAPTER_HELP)
    parser.add_argument(
        "--trace", metavar="FILE|NAME", help="a request trace (a file, or a name of `kvbench list traces`)"
    )
    parser.add_argument("--model", metavar="M", help="the model whose shapes are used (see `kvbench list models`)")
    _add_budget(parser)
    _add_config(parser)
    _add_out(parser)


def _add_compare(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands,
        "compare",
        "compare",
        "run all suites on several adapters, side by side",
        "Prints a table and, with --out, leaves DIR/index.html.",
    )
    parser.add_argument("adapters", nargs="+", metavar="ADAPTER", help=ADAPTER_HELP)
    parser.add_argument("--trace", metavar="FILE|NAME", help="the request trace of the fragmentation suite")
    parser.add_argument("--model", metavar="M", help="the model whose shapes the throughput suite uses")
    _add_budget(parser)
    _add_config(parser)
    _add_out(parser)


def _add_faults(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands,
        "faults",
        "faults",
        "run the suites against every known fault",
        "Each fault of the catalogue is shown to every check that it allows, and so is each correct adapter with\n"
        "unusual habits, which must not be accused. Exits with 0 if all faults are killed and nobody is accused.",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="a fault, a class or a control; may be repeated"
    )
    parser.add_argument("--exhaustive", action="store_true", help="ask every check, and tell what each alone finds")
    parser.add_argument("--jobs", type=int, metavar="N", help="trials at a time (default: as many as cores)")
    _add_budget(parser, default="standard")


def _add_estimate(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        commands,
        "estimate",
        "estimate",
        "KV memory of a model: per token, per sequence, beside its weights",
        "Sizes are of the cache alone unless they say otherwise.",
    )
    parser.add_argument("model", metavar="MODEL", help="a name of `kvbench list models`, such as llama-3.1-8b")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of context (default: the model's longest)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once (default 1)")
    parser.add_argument("--dtype", default="bf16", metavar="D", help="of the cache: f32, bf16, f16, fp8, int8, int4")
    parser.add_argument("--block-size", type=int, default=16, metavar="B", help="tokens a block (default 16)")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="such as 80GB or 80GiB: how many sequences fit")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="ranks that share the heads")


def _add_pages(commands: argparse._SubParsersAction[Parser]) -> None:
    for name, about in (
        ("report", "build pages from saved result folders"),
        ("leaderboard", "build a sortable leaderboard from saved result folders"),
    ):
        parser = _command(commands, name, "pages", about, "")
        parser.add_argument("folders", nargs="+", metavar="DIR", help="result folders written with --out")
        parser.add_argument("--out", required=True, metavar="SITE", help="folder for the pages")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Every error of ours is one line on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parsed = build_parser().parse_args(words)
    parsed.command_line = ["kvbench", *words]
    output = Output(as_json=parsed.json, quiet=parsed.quiet)
    try:
        code: int = importlib.import_module(parsed.module).run(parsed, output)
        sys.stdout.flush()
    except KvbenchError as error:
        output.error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        output.error("interrupted; what was measured so far is kept")
        return 130
    except BrokenPipeError:
        # The reader of our output has left (`| head`). Python would complain again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("KVBENCH_TRACEBACK"):
            raise
        told = " ".join(str(error).split())[:300]
        output.error(f"internal error: {type(error).__name__}: {told} (KVBENCH_TRACEBACK=1 shows where)")
        return 2
    return code
