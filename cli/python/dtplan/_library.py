"""libdtplan by ctypes: the only place that knows pointers."""

import ctypes
import csv
import io
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Union

if TYPE_CHECKING:
    import pandas

Setting = Union[str, int, float, bool, "os.PathLike[str]", Sequence[Union[str, int, float]], None]
#: The text of a scenario file, or the path of one.
Scenario = Union[str, "os.PathLike[str]", None]

_OK, _NO, _BAD_INPUT, _ENVIRONMENT = range(4)
_HERE = pathlib.Path(__file__).resolve().parent


class DtplanError(Exception):
    """A call without an answer. ``messages`` has a line for each fault that was found."""

    def __init__(self, messages: List[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class BadInput(DtplanError, ValueError):
    """An unknown setting, a value out of range, a combination that is not modelled."""


class EnvironmentFault(DtplanError, OSError):
    """Catalogues or files that cannot be read, or no memory."""


# What a traceback calls them is where users find them.
for _class in (DtplanError, BadInput, EnvironmentFault):
    _class.__module__ = "dtplan"


class Answer(Dict[str, Any]):
    """The object that ``dtplan COMMAND --json`` prints, by the schema that its key ``schema`` names.

    ``ok`` is false where the answer is no: it does not fit, nothing that was asked for does. ``notes`` has what there
    is to know besides, a line each.
    """

    ok: bool
    notes: List[str]


class Rows(List[Dict[str, Any]]):
    """The rows of a sweep: column to value, ``None`` where there is none.

    A combination that is refused is a row with ``refused_because``, one that does not fit a row with verdict ``oom``.
    """

    ok: bool
    notes: List[str]

    def frame(self) -> "pandas.DataFrame":
        """The rows as a ``pandas.DataFrame``, which needs pandas (``pip install dtplan[frame]``)."""
        import pandas

        return pandas.DataFrame(list(self))


def _candidates() -> Iterable[str]:
    given = os.environ.get("DTPLAN_LIBRARY")
    if given:
        yield given
        return
    for folder in ("lib", "lib64"):
        yield from (str(path) for path in sorted(_HERE.glob(f"{folder}/**/libdtplan.so.0")))
    yield "libdtplan.so.0"


def _load() -> ctypes.CDLL:
    reasons = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError(
        "libdtplan.so.0 cannot be loaded: " + "; ".join(reasons) + ". Install dtplan by 'pip install .', its package, or "
        "'cmake --install build'; or set DTPLAN_LIBRARY to its path"
    )


_lib = _load()
_texts = ctypes.POINTER(ctypes.c_char_p)
_pointer = ctypes.c_void_p  # a text that is ours to free
_lib.dtplan_version.restype = ctypes.c_char_p
_lib.dtplan_create.argtypes = [ctypes.c_char_p, _texts, ctypes.POINTER(_pointer), ctypes.POINTER(_pointer)]
_lib.dtplan_destroy.argtypes = [_pointer]
_lib.dtplan_destroy.restype = None
_lib.dtplan_free.argtypes = [_pointer]
_lib.dtplan_free.restype = None
_ASKED_OF_JOBS = ("plan", "simulate", "explain", "whatif", "sweep", "search")
for _name in _ASKED_OF_JOBS:
    getattr(_lib, "dtplan_" + _name).argtypes = [
        _pointer, ctypes.c_char_p, _texts, ctypes.POINTER(_pointer), ctypes.POINTER(_pointer)
    ]  # fmt: skip
_lib.dtplan_backtest.argtypes = [_pointer, _texts, _texts, ctypes.POINTER(_pointer), ctypes.POINTER(_pointer)]


def version() -> str:
    """The version of the library.

    >>> version().count(".")
    2
    """
    text: bytes = _lib.dtplan_version()
    return text.decode()


def _bytes_of(text: str) -> bytes:
    if "\0" in text:
        raise BadInput([f"{text!r}: a text with a NUL is no setting"])
    return os.fsencode(text)


def _array(texts: Sequence[bytes]) -> Any:
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def _take(pointer: Any) -> Optional[bytes]:
    """The text behind a pointer, which is freed."""
    if not pointer.value:
        return None
    text = ctypes.string_at(pointer)
    _lib.dtplan_free(pointer)
    return text


def _word(key: str, value: Any) -> str:
    """One setting as the library takes it.

    >>> _word("gpus", 8), _word("strategy", ["ddp", "zero3"]), _word("compile", True), _word("prefetch", False)
    ('gpus=8', 'strategy=ddp,zero3', 'compile', 'no_prefetch')
    >>> _word("model", b"gpt2")
    'model=gpt2'
    """
    if value is True:
        return key
    if value is False:
        return "no_" + key
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        value = ",".join(str(one) for one in value)
    return f"{key}={value}"


def _words(settings: Dict[str, Any]) -> Any:
    return _array([_bytes_of(_word(key, value)) for key, value in settings.items() if value is not None])


_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?\Z")
_TEXT_COLUMNS = {"schema", "sweep", "swept", "strategy", "refused_because", "model", "gpu", "machine"}


def _value(column: str, text: str) -> Any:
    """A field of a CSV table.

    >>> _value("gpus_count", "8"), _value("step_s", "0.25"), _value("model", "13"), _value("verdict", "")
    (8, 0.25, '13', None)
    """
    if text == "":
        return None
    if column in _TEXT_COLUMNS or not _NUMBER.match(text):
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


class Planner:
    """The catalogues, read once; functions of the module ask a planner of the catalogues that came with it.

    ``data`` is a folder with catalogues in place of those, ``catalogs`` are CSV files whose rows are added: own GPUs,
    machines, models and prices. Any number of threads may ask one planner at once.

    >>> planner = Planner()
    >>> planner.plan(model="gpt2", gpus=1, gpu="a10", strategy="ddp").ok
    True

    A copy, or what another process is sent of it, is a planner of its own, which reads the catalogues again:

    >>> import pickle
    >>> pickle.loads(pickle.dumps(planner)).plan(model="gpt2", gpus=1, gpu="a10", strategy="ddp").ok
    True
    """

    def __init__(
        self, data: "Optional[Union[str, os.PathLike[str]]]" = None, catalogs: "Sequence[Union[str, os.PathLike[str]]]" = ()
    ) -> None:
        self._handle: Optional[int] = None
        if isinstance(catalogs, (str, os.PathLike)):
            catalogs = [catalogs]
        self._read = (data, tuple(catalogs))
        own = _HERE / "share" / "dtplan"
        if data is None and not os.environ.get("DTPLAN_DATA") and (own / "gpus.csv").exists():
            data = own
        handle, messages = _pointer(), _pointer()
        status = _lib.dtplan_create(
            None if data is None else _bytes_of(os.fspath(data)),
            _array([_bytes_of(os.fspath(path)) for path in self._read[1]]),
            ctypes.byref(handle),
            ctypes.byref(messages),
        )
        lines = self._lines(messages)
        if status != _OK:
            self._refuse(status, lines)
        self._handle = handle.value

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _lib.dtplan_destroy(self._handle)
            self._handle = None

    def __reduce__(self) -> "tuple[Any, ...]":
        return type(self), self._read  # the handle is of this process, and is given back once

    @staticmethod
    def _lines(messages: Any) -> List[str]:
        return (_take(messages) or b"").decode(errors="replace").splitlines()

    @staticmethod
    def _refuse(status: int, lines: List[str]) -> None:
        kind = BadInput if status == _BAD_INPUT else EnvironmentFault
        raise kind(lines or ["out of memory"])

    def _ask(self, command: str, first: Any, settings: Dict[str, Any]) -> "tuple[bytes, bool, List[str]]":
        answer, messages = _pointer(), _pointer()
        status = getattr(_lib, "dtplan_" + command)(
            self._handle, first, _words(settings), ctypes.byref(answer), ctypes.byref(messages)
        )
        text, lines = _take(answer), self._lines(messages)
        if text is None:
            self._refuse(status, lines)
        return text or b"", status == _OK, lines

    def _answer(self, command: str, first: Any, settings: Dict[str, Any]) -> Answer:
        text, ok, notes = self._ask(command, first, settings)
        answer = Answer(json.loads(text))
        answer.ok, answer.notes = ok, notes
        return answer

    @staticmethod
    def _text(scenario: Scenario) -> Optional[bytes]:
        if isinstance(scenario, os.PathLike):
            return pathlib.Path(scenario).read_bytes()
        return None if scenario is None else _bytes_of(scenario)

    def plan(self, *, scenario: Scenario = None, **settings: Setting) -> Answer:
        """Memory, communication, step time and cost of one plan; of several strategies all of them (``plans``).

        >>> answer = Planner().plan(params="7B", gpus=8, strategy="all", fidelity="bounds")
        >>> answer["schema"], answer["best"] in {plan["plan"]["strategy"] for plan in answer["plans"]}
        ('dtplan.compare/1', True)

        ``fidelity="bounds"`` with ``no_advice=True`` is fastest, for who asks of thousands.
        """
        return self._answer("plan", self._text(scenario), settings)

    def simulate(self, *, scenario: Scenario = None, **settings: Setting) -> Answer:
        """The step run operation by operation: what overlaps, what waits, quantiles over GPUs of the kind.

        >>> Planner().simulate(model="gpt2", gpus=2, gpu="a10", strategy="ddp")["schema"]
        'dtplan.simulation/1'
        """
        return self._answer("simulate", self._text(scenario), settings)

    def explain(self, *, scenario: Scenario = None, **settings: Setting) -> Answer:
        """Where each byte and each second comes from.

        >>> Planner().explain(model="gpt2", gpus=2, gpu="a10", strategy="ddp")["schema"]
        'dtplan.explain/1'
        """
        return self._answer("explain", self._text(scenario), settings)

    def whatif(self, *, scenario: Scenario = None, **settings: Setting) -> Answer:
        """Every single change of a plan, ranked.

        >>> Planner().whatif(model="gpt2", gpus=2, gpu="a10", strategy="ddp", fidelity="bounds")["schema"]
        'dtplan.whatif/1'
        """
        return self._answer("whatif", self._text(scenario), settings)

    def search(self, *, scenario: Scenario = None, **settings: Setting) -> Answer:
        """Which GPUs, how many and which plan train ``tokens`` by ``deadline`` and within ``budget``.

        >>> found = Planner().search(params="1B", gpu="a10", gpus=[2, 4], tokens="200M", strategy="full_shard")
        >>> found["schema"]
        'dtplan.search/1'
        """
        return self._answer("search", self._text(scenario), settings)

    def sweep(self, *, scenario: Scenario = None, **settings: Setting) -> Rows:
        """Every combination of lists (``[1, 2]``) and ranges (``"8..64x2"``), a row each, computed on all cores.

        >>> rows = Planner().sweep(model="gpt2", gpu="a10", gpus=[1, 2], strategy="ddp", micro_batch="1..4x2")
        >>> [(row["gpus_count"], row["micro_batch_sequences"]) for row in rows]
        [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
        """
        text, ok, notes = self._ask("sweep", self._text(scenario), settings)
        lines = csv.reader(io.StringIO(text.decode(), newline=""))
        header = next(lines)
        rows = Rows(dict(zip(header, map(_value, header, line))) for line in lines)
        rows.ok, rows.notes = ok, notes
        return rows

    def backtest(self, *tables: "Union[str, os.PathLike[str]]", **settings: Setting) -> Answer:
        """How far off predictions are on tables of measured runs."""
        return self._answer("backtest", _array([_bytes_of(os.fspath(path)) for path in tables]), settings)
