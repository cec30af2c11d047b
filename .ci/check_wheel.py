"""Build sdist and wheel, install the wheel into an empty environment and use it from an unrelated folder.

Runs in an environment that has kvbench's dependencies and `build`; the empty environment borrows the dependencies, so
that torch is not installed twice. Exits with a message at the first thing that is not as it should be.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("reference", "kernels", "suites", "reports")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command in `cwd` and return what it printed; end with its output if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def belongs_in_wheel() -> set[str]:
    """Paths, relative to the installed package, of what git tracks in the five folders."""
    tracked = run("git", "ls-files", "-z", "kvbench", *ROOMS).split("\0")
    files = [Path(name) for name in tracked if name and not (ROOT / name).is_symlink() and not name.endswith(".md")]
    return {str(path.relative_to("kvbench") if path.parts[0] == "kvbench" else path) for path in files}


def check(condition: bool, message: str) -> None:
    """End with `message` unless `condition`."""
    if not condition:
        sys.exit(f"wheel check: {message}")


def installed_in_empty_environment(work: Path) -> tuple[Path, Path]:
    """Build the wheel and install it alone; return the environment's folder and its site-packages."""
    run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT)
    (wheel,) = (work / "dist").glob("*.whl")
    environment = work / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile", wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    return environment, site


def check_contents(site: Path) -> None:
    """Only kvbench is in site-packages, and all of it."""
    arrived = sorted(path.name for path in site.iterdir() if path.suffix != ".dist-info")
    check(arrived == ["kvbench"], f"site-packages received {arrived}, not just kvbench")
    expected = belongs_in_wheel()
    package = site / "kvbench"
    installed = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    check(expected <= installed, f"missing from the wheel: {sorted(expected - installed)}")
    check(installed <= expected, f"in the wheel but not tracked by git: {sorted(installed - expected)}")


def check_use(environment: Path, site: Path, elsewhere: Path) -> None:
    """The installed package, not the checkout, imports and answers from a folder that has nothing to do with it."""
    # A path line in a .pth file: what .pth files there say (an editable kvbench) is not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    elsewhere.mkdir()
    where = run(environment / "bin" / "python", "-c", "import kvbench; print(kvbench.__file__)", cwd=elsewhere).strip()
    check(where == str(site / "kvbench" / "__init__.py"), f"kvbench was imported from {where}")
    for room in ROOMS:
        if not list((site / "kvbench" / room).glob("*.py")):
            continue
        run(environment / "bin" / "python", "-c", f"import kvbench.{room}", cwd=elsewhere)
    kvbench = environment / "bin" / "kvbench"
    listing = run(kvbench, "list", "adapters", cwd=elsewhere)
    check("reference" in listing, f"`kvbench list adapters` does not name the reference:\n{listing}")
    run(kvbench, "estimate", "llama-3.1-8b", cwd=elsewhere)
    run(kvbench, "verify", "reference", "--suite", "lifecycle", "--budget", "quick", cwd=elsewhere)


def main() -> None:
    """Build, look, use."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        environment, site = installed_in_empty_environment(work)
        check_contents(site)
        check_use(environment, site, work / "elsewhere")
    print("wheel check: only kvbench is in site-packages, all of it, and it works from an unrelated folder")


if __name__ == "__main__":
    main()
