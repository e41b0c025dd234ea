"""Types of the compiled part of `triad`; tests/test_stubs.py compares them with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
import pathlib
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

__version__: str

Logits = NDArray[np.float32]
Messages = Sequence[Mapping[str, Any]]
Path = str | PathLike[str]
Tools = Sequence[Mapping[str, Any]]

class TriadError(Exception):
    """A model or a file is invalid, or a run failed."""

class PromptTooLong(TriadError):
    """A prompt has more tokens than the context."""

class Busy(TriadError):
    """A session is computing something else."""

class Options(TypedDict, total=False):
    """The options of an answer.

    Defaults are those of the model's authors, or else temperature 0.7, top_p 0.95 and repetition penalty 1.05.
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    logprobs: int
    speculate: bool
    schema: str | Mapping[str, Any]
    regex: str
    grammar: str
    lora: Sequence[Path | tuple[Path, float]]

class ToolCall:
    """A call of a function by the model."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> dict[str, Any]: ...

class Answer:
    """The answer of a model."""

    @property
    def text(self) -> str: ...
    @property
    def calls(self) -> list[ToolCall]: ...
    @property
    def message(self) -> dict[str, Any]: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def finish(self) -> Literal["end-token", "stop-string", "length", "context-full", "cancelled"]: ...
    @property
    def logprobs(self) -> list[tuple[int, float, list[tuple[int, float]]]] | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def reused_tokens(self) -> int: ...
    @property
    def encode_seconds(self) -> float: ...
    @property
    def prefill_seconds(self) -> float: ...
    @property
    def decode_seconds(self) -> float: ...
    @property
    def time_to_first_token_seconds(self) -> float: ...
    @property
    def prefill_tokens_per_second(self) -> float: ...
    @property
    def decode_tokens_per_second(self) -> float: ...

class Stream(Iterator[str]):
    """A streamed answer: an iterator over the parts of its text."""

    def __next__(self) -> str: ...
    def cancel(self) -> None: ...
    @property
    def answer(self) -> Answer: ...

class Session:
    """A conversation: the tokens that a model has processed, with their keys and values."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def context(self) -> int: ...
    @property
    def logits(self) -> Logits: ...
    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Answer: ...
    def stream(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Stream: ...
    def chat(self, messages: Messages, *, tools: Tools | None = None, **options: Unpack[Options]) -> Answer: ...
    def chat_stream(self, messages: Messages, *, tools: Tools | None = None, **options: Unpack[Options]) -> Stream: ...
    def prefill(self, tokens: Sequence[int], *, all: bool = False) -> Logits: ...
    def decode(self, token: int) -> Logits: ...
    def score(self, branches: Sequence[tuple[Sequence[int], int]]) -> list[tuple[list[float], bool]]: ...
    def truncate(self, length: int) -> None: ...
    def fork(self) -> Session: ...
    def save(self, path: Path) -> None: ...

class Model:
    """A model, ready to run."""

    def __init__(
        self,
        name: Path | None = None,
        *,
        float: bool = False,
        threads: int | None = None,
        context: int | None = None,
        chunk: int = 256,
        kv: Literal["f16", "int8", "f32"] = "f16",
        progress: Callable[[str], object] | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end_tokens(self) -> list[int]: ...
    def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int]) -> str: ...
    def apply_template(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str: ...
    def embed(self, prompt: str | Sequence[int], *, pooling: Literal["mean", "last", "first"] | None = None) -> Logits: ...
    def session(self) -> Session: ...
    def restore(self, path: Path) -> Session: ...
    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Answer: ...
    def stream(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Stream: ...
    def chat(self, messages: Messages, *, tools: Tools | None = None, **options: Unpack[Options]) -> Answer: ...
    def chat_stream(self, messages: Messages, *, tools: Tools | None = None, **options: Unpack[Options]) -> Stream: ...
    def evaluate(
        self,
        task: str,
        data: Path,
        *,
        few_shot: Path | None = None,
        limit: int | None = None,
        window: int = 1024,
        chunk: int = 512,
    ) -> dict[str, Any]: ...

def prepare(
    model: Path | None = None,
    output: Path | None = None,
    *,
    weights: Literal["channel", "tensor", "int4"] = "channel",
    prune: float | Literal["auto", "none"] | None = None,
    calibrate: Sequence[Path] = (),
    tokens: int = 16384,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[str], object] | None = None,
) -> pathlib.Path: ...
