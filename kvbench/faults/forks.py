"""Faults of copy-on-write and of rollback: blocks that are shared for too long, and drafts that stay."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import Copy, PoolSpec, Tier
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.refusals import check_length
from kvbench.subject import Subject

# -- C1: copy-on-write -------------------------------------------------------------------------------------------------


class WritesIntoSharedTails(ReferenceManager):
    """Nobody's tail is taken for shared."""

    def _is_shared(self, block: int) -> bool:
        return False


class OwesNoCopies(ReferenceManager):
    """The tail is replaced by a block that nothing is copied into."""

    def take_copies(self) -> Sequence[Copy]:
        return [copy for copy in super().take_copies() if copy.tier is not Tier.WITHIN]


class ForksWithoutReferences(ReferenceManager):
    """A child holds its parent's blocks without counting."""

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        for block in self.sequences[child].blocks():
            self.pool.references[block] -= 1


class OnlyChildrenCopy(ReferenceManager):
    """A parent goes on writing where its children read."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.parents: set[str] = set()
        self.growing = ""

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self.parents.add(parent)

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        self.growing = seq
        super().extend(seq, tokens, speculative)

    def _is_shared(self, block: int) -> bool:
        return self.growing not in self.parents and super()._is_shared(block)


class ForgetsTheCopyInItsEstimate(ReferenceManager):
    """The block that a copy takes is not asked for."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        self.discount = 1 if tokens else 0
        try:
            super().extend(seq, tokens, speculative)
        finally:
            self.discount = 0

    def _require(self, seq: str, needed: int) -> None:
        super()._require(seq, needed - getattr(self, "discount", 0))


def _family(subject: Subject) -> str | None:
    scene = Scene(subject, prefix_caching=False)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    scene.extend("a", 4)
    scene.extend("b", 5)
    scene.step()
    scene.step()
    scene.free("a")
    scene.begin("c", [7, 8, 9])
    scene.step()
    scene.free("b")
    scene.free("c")
    return scene.said() or scene.leaked


def _parent_rewrites(subject: Subject) -> str | None:
    """A parent drops a token that its child still reads, and writes another in its place."""
    scene = Scene(subject, block_size=4, prefix_caching=False)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    scene.truncate("a", 2)
    scene.extend("a", 9)
    scene.step()
    return scene.said()


def _no_room_for_the_copy(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=2, prefix_caching=False)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    return None if scene.refused(scene.extend, "b", 4) else "a copy is made in a full pool"


# -- C2: the pairs of a copy -------------------------------------------------------------------------------------------


class CopiesOntoItself(ReferenceManager):
    """The pairs name the source twice."""

    def take_copies(self) -> Sequence[Copy]:
        return [
            copy._replace(target=copy.source) if copy.tier is Tier.WITHIN else copy for copy in super().take_copies()
        ]


class CopiesInReverse(ReferenceManager):
    """Copies of a step are handed out last first, so that a chain reads what was overwritten."""

    def take_copies(self) -> Sequence[Copy]:
        return list(super().take_copies())[::-1]


def _chain_of_copies(subject: Subject) -> str | None:
    """In a full pool the source of one copy is the target of the next."""
    scene = Scene(subject, num_blocks=4, block_size=2, host_blocks=4, prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4])
    scene.begin("b", [5, 6, 7, 8])
    scene.step()
    scene.swap_out("a")
    scene.begin("c", [9, 9, 9])
    scene.step()
    scene.free("c")
    scene.swap_out("b")
    scene.swap_in("a")
    scene.step()
    scene.free("a")
    scene.swap_in("b")
    scene.step()
    return scene.said()


# -- R1: rollback ------------------------------------------------------------------------------------------------------


class KeepsTheDraftsKeys(ReferenceManager):
    """Rejected drafts stay in what the sequence's prefixes are found by."""

    def truncate(self, seq: str, length: int) -> None:
        state = self._running(seq)
        chain = list(state.chain)
        for prefix in chain:
            prefix.uses += 1
        super().truncate(seq, length)
        kept = len(state.chain)
        state.chain += chain[kept:]
        for prefix in chain[:kept]:
            self.prefixes.drop(prefix)


class HashesDrafts(KeepsTheDraftsKeys):
    """The keys of full blocks are made when tokens arrive, and one row too many is kept of rejected ones."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        super().extend(seq, tokens, speculative)
        state = self.sequences[seq]
        if state.chain:
            self._extend_chain(state, len(state.tokens))


class KeepsTheTail(ReferenceManager):
    """Blocks behind the accepted tokens stay with the sequence."""

    def _release_tails(self, state: object, kept: int) -> None:
        if kept == 0:
            super()._release_tails(state, kept)  # type: ignore[arg-type]


class IgnoresTruncation(ReferenceManager):
    """Truncating changes nothing."""

    def truncate(self, seq: str, length: int) -> None:
        check_length(seq, length, len(self._running(seq).tokens))


def _rejected(subject: Subject) -> str | None:
    """Drafts are rejected, others take their place, and a second prompt asks for the drafts' prefix."""
    scene = Scene(subject, num_blocks=8, block_size=2)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.extend("a", 4, 5, 6, speculative=True)
    scene.step(commit=False)
    scene.truncate("a", 3)
    if len(scene.manager.block_table("a")) > 2:
        return "blocks of rejected drafts are kept"
    scene.extend("a", 7, 8, 9)
    scene.step()
    scene.begin("b", [1, 2, 3, 4, 5, 6, 7])
    scene.step()
    return scene.said()


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "C1", "cow-missing", "cow", 2,
        "after a fork somebody writes into a block that another still reads",
        ("xLLM-AI/xllm#1984", "openvinotoolkit/openvino.genai#799"),
    ),
    Fault("C1a", "a shared tail is written in place", with_manager("C1a", WritesIntoSharedTails), _family,
          needs=("fork",)),
    Fault("C1b", "the tail is replaced and nothing is copied", with_manager("C1b", OwesNoCopies), _family,
          needs=("fork",)),
    Fault("C1c", "a fork does not count its references", with_manager("C1c", ForksWithoutReferences), _family,
          needs=("fork",)),
    Fault("C1d", "only children copy, parents write in place", with_manager("C1d", OnlyChildrenCopy),
          _parent_rewrites, needs=("fork", "truncate_accepted")),
    Fault("C1e", "the block that a copy takes is not in the estimate",
          with_manager("C1e", ForgetsTheCopyInItsEstimate), _no_room_for_the_copy, needs=("fork",)),
    FaultClass(
        "C2", "copy-payload-incomplete", "swap", 3,
        "a block copy moves a part of the block, or to the wrong place",
        ("jd-opensource/xllm#573", "mlc-ai/mlc-llm#2644", "turboderp-org/exllamav2@4587220",
         "turboderp-org/exllamav2@d053e9e", "kekzl/imp#1189", "sgl-project/sglang#23346"),
    ),
    Fault("C2d", "pairs are written down as (source, source)", with_manager("C2d", CopiesOntoItself), _family,
          needs=("fork",)),
    Fault("C2f", "copies that build on each other are handed out in the wrong order",
          with_manager("C2f", CopiesInReverse), _chain_of_copies, needs=("swap",)),
    FaultClass(
        "R1", "rollback-wrong", "scheduler", 3,
        "dropping rejected drafts leaves keys, rows or blocks of theirs",
        (
            "vllm-project/vllm#9730", "lablup/mlxcel#994", "jd-opensource/xllm#960", "ml-explore/mlx-lm#1109",
            "sgl-project/sglang#22862", "vllm-project/vllm#22317", "ggml-org/llama.cpp#10641",
        ),
    ),
    Fault("R1a", "keys of rejected drafts are kept for what takes their place",
          with_manager("R1a", HashesDrafts), _rejected, needs=("truncate", "prefix caching")),
    Fault("R1c", "blocks of rejected drafts are kept for ever", with_manager("R1c", KeepsTheTail), _rejected,
          needs=("truncate",)),
    Fault("R1d", "truncating is silently ignored", with_manager("R1d", IgnoresTruncation), _rejected,
          needs=("truncate",)),
)  # fmt: skip
