"""Faults of namespaces: prefixes that are found under another salt, adapter or tenant."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.sequence import Place, SequenceState
from kvbench.subject import Subject

PROMPT = [1, 2, 3, 4, 5]


class IgnoresNamespaces(ReferenceManager):
    """All prompts are of one namespace."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        return super().begin(seq, tokens, None)


class ForgetsNamespaceOnFork(ReferenceManager):
    """What a child holds is published under no namespace."""

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        state = self.sequences[child]
        self._drop_chain(state, 0)
        state.namespace = None
        self._extend_chain(state, state.committed)
        for group, table in enumerate(state.tables):
            for index in range(min(state.published, len(state.chain) - 1)):
                if self.prefixes.forget(table[index]) and group not in state.chain[index + 1].blocks:
                    self.prefixes.publish(state.chain[index + 1], group, table[index])


class ForgetsNamespaceOnResume(ReferenceManager):
    """A resumed sequence is looked up and published under no namespace."""

    def resume(self, seq: str) -> int:
        state = self._find(seq, Place.PREEMPTED)
        self._drop_chain(state, 0)
        state.namespace = None
        return super().resume(seq)


class ForgetsNamespaceOnTheHost(ReferenceManager):
    """What comes back from the host is published under no namespace."""

    def swap_in(self, seq: str) -> None:
        super().swap_in(seq)
        state = self.sequences[seq]
        if state.chain:
            self._drop_chain(state, 0)
            state.namespace = None
            self._extend_chain(state, len(state.tokens))


class TakesEmptyForNone(ReferenceManager):
    """An empty namespace is none."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        return super().begin(seq, tokens, namespace or None)


class RunsFieldsTogether(ReferenceManager):
    """The key of the first block is one text: the namespace, then the tokens, nothing between them."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        first = "".join(map(str, tokens[: self.spec.block_size]))
        return super().begin(seq, tokens, f"{namespace or ''}{first}")

    def _extend_chain(self, state: SequenceState, length: int) -> None:
        if not self.spec.prefix_caching:
            return
        if not state.chain:
            state.chain.append(self.prefixes.hold(None, state.namespace))
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            tokens = () if index == 0 else tuple(state.tokens[index * size : (index + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[-1], tokens))


def _stranger(scene: Scene, namespace: str | None, tokens: Sequence[int] = (1, 2, 3, 4, 5)) -> str | None:
    """Whether a prompt of another namespace finds anything."""
    cached = scene.begin("stranger", tokens, namespace)
    scene.step()
    return f"{cached} tokens of another namespace are hit" if cached else scene.said()


def _asked_by_another(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16)
    scene.begin("a", PROMPT, "red")
    scene.step()
    return _stranger(scene, "blue")


def _forked(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16)
    scene.begin("a", [1, 2, 3], "red")
    scene.step()
    scene.fork("a", "b")
    scene.extend("b", 4, 5)
    scene.step()
    return _stranger(scene, None)


def _resumed(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16)
    scene.begin("a", PROMPT, "red")
    scene.step()
    scene.preempt("a")
    scene.resume("a")
    scene.step()
    return _stranger(scene, None)


def _swapped(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16, host_blocks=8)
    scene.begin("a", PROMPT, "red")
    scene.step()
    scene.swap_out("a")
    scene.step()
    scene.swap_in("a")
    scene.step()
    scene.extend("a", 6, 7)
    scene.step()
    return _stranger(scene, None)


def _empty(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16)
    scene.begin("a", PROMPT, "")
    scene.step()
    return _stranger(scene, None)


def _run_together(subject: Subject) -> str | None:
    """Namespace "1" and tokens 2, 3 beside namespace "12" and token 3 first."""
    scene = Scene(subject, num_blocks=16)
    scene.begin("a", [23, 4, 5, 6, 7], "1")
    scene.step()
    return _stranger(scene, "12", [3, 4, 5, 6, 7])


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "P2", "namespace-missing", "security", 2,
        "the namespace is not part of the key on at least one path",
        ("vllm-project/vllm#3263", "vllm-project/vllm#23186", "sgl-project/sglang#23300", "vllm-project/vllm#15668",
         "sgl-project/sglang#37160", "llm-d/llm-d-router#1389"),
    ),
    Fault("P2a", "namespaces are ignored", with_manager("P2a", IgnoresNamespaces), _asked_by_another,
          needs=("namespaces",)),
    Fault("P2b", "a fork forgets its namespace", with_manager("P2b", ForgetsNamespaceOnFork), _forked,
          needs=("namespaces", "fork")),
    Fault("P2c", "what comes back from the host has no namespace", with_manager("P2c", ForgetsNamespaceOnTheHost),
          _swapped, needs=("namespaces", "swap")),
    Fault("P2e", "a resumed sequence forgets its namespace", with_manager("P2e", ForgetsNamespaceOnResume), _resumed,
          needs=("namespaces", "preempt")),
    FaultClass(
        "P4", "namespace-ambiguous", "security", 4,
        "distinct contexts are encoded to the same key",
        ("vllm-project/vllm#44701", "tinfoilsh/confidential-model-router#386", "vllm-project/vllm#36708",
         "vllm-project/vllm#17378", "LMCache/LMCache#3301", "sgl-project/sglang#2239"),
    ),
    Fault("P4b", "namespace and tokens are run together without framing", with_manager("P4b", RunsFieldsTogether),
          _run_together, needs=("namespaces",)),
    Fault("P4f", "an empty namespace is taken for none", with_manager("P4f", TakesEmptyForNone), _empty,
          needs=("namespaces",)),
)  # fmt: skip
