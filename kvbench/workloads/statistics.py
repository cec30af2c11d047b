"""Published traces in numbers: what the generators are calibrated on.

Quantiles and shares marked "computed from the file" are ours, from the named public file; none of its requests is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEVELS = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999, 1.0)
"""The quantiles that a `Quantiles` lists."""


@dataclass(frozen=True)
class Quantiles:
    """A distribution of lengths (tokens) or times (seconds): its values at `LEVELS`, and its mean.

    Between two levels the logarithm of the value is taken as linear.
    """

    values: tuple[float, ...]
    mean: float


@dataclass(frozen=True)
class LogNormal:
    """A distribution of lengths of which only the mean is published; `sigma` is an assumption of ours."""

    mean: float
    sigma: float

    @property
    def mu(self) -> float:
        """Mean of the logarithm."""
        return math.log(self.mean) - self.sigma**2 / 2


Lengths = Quantiles | LogNormal


@dataclass(frozen=True)
class Arrivals:
    """Gaps between requests: Gamma with mean 1/`rate` seconds and coefficient of variation `variation` (1: Poisson).

    tick: timestamps are whole multiples of so many seconds, as published; 0 where they are exact.
    """

    rate: float
    variation: float
    tick: float = 0.0


@dataclass(frozen=True)
class Sharing:
    """How prompts share prefixes.

    system_blocks: blocks at the start of every prompt. follow_up: share of requests that continue an earlier one.
    prompt, output: lengths of these. shared_part: how much of their blocks the earlier request has (values at
    `LEVELS`). pause: seconds since that request.
    """

    hash_block: int
    system_blocks: int
    follow_up: float
    prompt: Quantiles
    output: Quantiles
    shared_part: tuple[float, ...]
    pause: tuple[float, ...]
    ideal_token_hit_ratio: float


@dataclass(frozen=True)
class Workload:
    """Target statistics of a named trace. prompt, output: lengths of requests that continue no earlier one."""

    name: str
    about: str
    source: str
    count: int
    prompt: Lengths
    output: Lengths
    arrivals: Arrivals
    sharing: Sharing | None = None


AZURE = "AzurePublicDataset 2023 (Patel et al., Splitwise, ISCA 2024; CC-BY 4.0); computed from the file"
MOONCAKE = "Mooncake (Qin et al., FAST 2025; Apache-2.0); computed from the file"
VLLM = "means: Kwon et al., SOSP 2023, figure 11; spread and Poisson arrivals assumed"

WORKLOADS = (
    Workload(
        "azure-conv",
        "chat: medium prompts, answers of 50 to 450 tokens",
        f"{AZURE} AzureLLMInferenceTrace_conv.csv",
        19366,
        Quantiles((2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 6179, 14050), 1154.70),
        Quantiles((7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000), 211.13),
        Arrivals(rate=5.530, variation=1.094),
    ),
    Workload(
        "azure-code",
        "code completion: long prompts, very short answers, bursts",
        f"{AZURE} AzureLLMInferenceTrace_code.csv",
        8819,
        Quantiles((3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437, 7437), 2047.85),
        Quantiles((6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 825, 1899), 27.88),
        Arrivals(rate=2.566, variation=13.15),
    ),
    Workload(
        "mooncake-conv",
        "long-context chat, a system prompt shared by all, conversations of several turns",
        f"{MOONCAKE} mooncake_conversation_trace.jsonl",
        12031,
        Quantiles((891, 894, 897, 905, 1336, 5264, 13056, 25559, 38494, 89868, 121160, 126195), 10764.57),
        Quantiles((1, 3, 9, 22, 155, 351, 467, 585, 674, 1010, 2000, 2000), 336.28),
        Arrivals(rate=3.401, variation=2.41, tick=3.0),  # counts per 3 s: mean 10.2, variance 59.1
        Sharing(
            hash_block=512,
            system_blocks=1,
            follow_up=0.3872,
            prompt=Quantiles((892, 1163, 1634, 2102, 4530, 9873, 17655, 28908, 40992, 79133, 121299, 123194), 14046.09),
            output=Quantiles((1, 3, 13, 29, 159, 348, 479, 618, 738, 1333, 2000, 2000), 352.66),
            shared_part=(0.015, 0.058, 0.143, 0.286, 0.524, 0.800, 0.931, 0.971, 0.983, 1.0, 1.0, 1.0),
            pause=(0.1, 12, 30, 42, 66, 123, 264, 483, 615, 1477, 2500, 3030),
            ideal_token_hit_ratio=0.3736,
        ),
    ),
    Workload(
        "mooncake-synthetic",
        "many questions on the same long documents",
        f"{MOONCAKE} mooncake_synthetic_trace.jsonl",
        3993,
        Quantiles((13, 13, 19, 23, 41, 565, 16412, 26856, 37047, 55505, 118445, 191374), 9191.98),
        Quantiles((1, 2, 4, 8, 57, 214, 331, 479, 621, 778, 822, 842), 230.04),
        Arrivals(rate=3.906, variation=1.011),
        Sharing(
            hash_block=512,
            system_blocks=0,
            follow_up=0.4378,
            prompt=Quantiles(
                (1345, 2511, 2829, 3686, 7768, 18132, 35469, 45793, 55110, 71831, 191375, 191378), 23202.87
            ),
            output=Quantiles((2, 2, 2, 2, 6, 16, 54, 102, 149, 500, 664, 893), 45.19),
            shared_part=(0.5, 0.8, 0.833, 0.875, 0.944, 0.970, 0.986, 1.0, 1.0, 1.0, 1.0, 1.0),
            pause=(0.05, 0.46, 2.48, 5.89, 19.8, 63.6, 162, 294, 406, 608, 750, 793),
            ideal_token_hit_ratio=0.6512,
        ),
    ),
    Workload(
        "sharegpt",
        "chat: short prompts, longer answers",
        f"ShareGPT; {VLLM}",
        2000,
        LogNormal(161.31, sigma=1.0),
        LogNormal(337.99, sigma=0.8),
        Arrivals(rate=2.0, variation=1.0),
    ),
    Workload(
        "alpaca",
        "instructions: very short prompts and answers",
        f"Alpaca; {VLLM}",
        2000,
        LogNormal(19.31, sigma=0.5),
        LogNormal(58.45, sigma=0.9),
        Arrivals(rate=10.0, variation=1.0),
    ),
)
