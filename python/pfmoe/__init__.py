"""pfmoe from Python, by ctypes over the shared library libpfmoe.so.0; what the functions do is said in pfmoe.h.

    with pfmoe.Model("model.gguf") as model, model.session() as session:
        for piece in session.chat([("user", "Tell me a fable about a fox.")]):
            print(piece, end="", flush=True)

The library is looked for where PFMOE_LIBRARY says, then where the system's loader looks. A model may be used from any thread, a session
from one at a time. Errors are pfmoe.Error, with the library's sentence and its status."""
from __future__ import annotations

import ctypes as c
import os
from typing import Callable, Iterable, Iterator, Sequence

__all__ = ["Error", "Model", "Sampling", "Session", "version"]

TOK_ADD_SPECIAL, TOK_PARSE_SPECIAL, DETOK_SPECIAL, DETOK_CONTINUE = 1, 2, 4, 8
KV_TYPES = {"i16": 0, "f32": 1, "q8_0": 2}


class Error(Exception):
    """A call that failed: the library's sentence, and its status (a negative number, pfmoe.h has the list)."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# Structs of pfmoe.h, as far as they are used here. Those that the library fills or reads through a pointer are followed by room for
# fields that later releases may add at their ends.
class _ModelOpts(c.Structure):
    _fields_ = [("n_threads", c.c_int), ("isa", c.c_uint32), ("device", c.c_int), ("vram_bytes", c.c_uint64), ("vocab_only", c.c_bool),
                ("ram_bytes", c.c_uint64), ("streaming", c.c_bool), ("_rest", c.c_uint8 * 1024)]


class _ModelInfo(c.Structure):
    _fields_ = [("architecture", c.c_char_p), ("name", c.c_char_p), ("backend", c.c_char_p), ("isa", c.c_char_p), ("n_threads", c.c_int),
                ("n_gpu_layers", c.c_int)] + [(name, c.c_int64) for name in (
                    "n_layers", "n_ctx_train", "n_embd", "n_heads", "n_kv_heads", "n_vocab", "n_experts", "n_experts_used")]


class _Message(c.Structure):
    _fields_ = [(name, c.c_char_p) for name in ("role", "content", "reasoning", "tool_calls_json", "tool_call_id", "name")]


class _SessionOpts(c.Structure):
    _fields_ = [("n_ctx", c.c_int64), ("n_batch", c.c_int), ("kv_type", c.c_int), ("_rest", c.c_uint8 * 256)]


class _Sampler(c.Structure):
    _fields_ = [("temp", c.c_float), ("top_k", c.c_int), ("top_p", c.c_float), ("min_p", c.c_float), ("_rest", c.c_uint8 * 512)]


_TOKENS = c.POINTER(c.c_int32)
_SIZE = c.POINTER(c.c_size_t)
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "pf_version": (c.c_char_p, []),
    "pf_last_error": (c.c_char_p, []),
    "pf_model_opts_init": (None, [c.POINTER(_ModelOpts)]),
    "pf_model_open": (c.c_int, [c.POINTER(c.c_void_p), c.c_char_p, c.POINTER(_ModelOpts)]),
    "pf_model_close": (None, [c.POINTER(c.c_void_p)]),
    "pf_model_info": (c.POINTER(_ModelInfo), [c.c_void_p]),
    "pf_tokenize": (c.c_int, [c.c_void_p, c.c_char_p, c.c_size_t, c.c_uint, _TOKENS, c.c_size_t, _SIZE]),
    "pf_detokenize": (c.c_int, [c.c_void_p, _TOKENS, c.c_size_t, c.c_uint, c.c_char_p, c.c_size_t, _SIZE]),
    "pf_utf8_complete": (c.c_size_t, [c.c_char_p, c.c_size_t]),
    "pf_token_is_end": (c.c_bool, [c.c_void_p, c.c_int32]),
    "pf_chat_render": (c.c_int, [c.c_void_p, c.POINTER(_Message), c.c_size_t, c.c_void_p, c.c_char_p, c.c_size_t, _SIZE]),
    "pf_session_opts_init": (None, [c.POINTER(_SessionOpts)]),
    "pf_session_open": (c.c_int, [c.POINTER(c.c_void_p), c.c_void_p, c.POINTER(_SessionOpts)]),
    "pf_session_close": (None, [c.POINTER(c.c_void_p)]),
    "pf_session_sync": (c.c_int, [c.c_void_p, _TOKENS, c.c_size_t, _SIZE]),
    "pf_session_eval": (c.c_int, [c.c_void_p, _TOKENS, c.c_size_t, c.c_uint]),
    "pf_session_rewind": (c.c_int, [c.c_void_p, c.c_int64]),
    "pf_session_pos": (c.c_int64, [c.c_void_p]),
    "pf_session_n_ctx": (c.c_int64, [c.c_void_p]),
    "pf_session_logits": (c.POINTER(c.c_float), [c.c_void_p]),
    "pf_session_cancel": (None, [c.c_void_p]),
    "pf_sampler_init": (None, [c.POINTER(_Sampler), c.c_uint64]),
    "pf_sample": (c.c_int, [c.POINTER(_Sampler), c.c_void_p, _TOKENS]),
}


def _open_library() -> c.CDLL:
    lib = c.CDLL(os.environ.get("PFMOE_LIBRARY") or "libpfmoe.so.0")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


_lib = _open_library()


def _check(status: int) -> None:
    if status < 0:
        raise Error(status, _lib.pf_last_error().decode("utf-8", "replace"))


def _filled(call: Callable[[object, int, object], int], make: Callable[[int], c.Array]) -> tuple[c.Array, int]:
    """A buffer that call(buffer, capacity, size) fills: it is asked for the size first."""
    need = c.c_size_t()
    status = call(None, 0, c.byref(need))
    if status < 0 and status != -2:                                # PF_ESPACE: need says how much
        _check(status)
    buffer = make(max(need.value, 1))
    _check(call(buffer, need.value, c.byref(need)))
    return buffer, need.value


def version() -> str:
    return _lib.pf_version().decode()


class Model:
    """An open model; threads 0: one a core, device -1: the CPU alone."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 0, device: int = 0, vram_bytes: int = 0, ram_bytes: int = 0,
                 streaming: bool = False, vocab_only: bool = False) -> None:
        self._handle = c.c_void_p()
        self._n_sessions = 0
        opts = _ModelOpts()
        _lib.pf_model_opts_init(c.byref(opts))
        opts.n_threads, opts.device, opts.vram_bytes, opts.ram_bytes = threads, device, vram_bytes, ram_bytes
        opts.streaming, opts.vocab_only = streaming, vocab_only
        _check(_lib.pf_model_open(c.byref(self._handle), os.fsencode(path), c.byref(opts)))

    def close(self) -> None:
        """Sessions of the model are closed before."""
        if self._n_sessions:
            raise RuntimeError("the model has open sessions")
        if self._handle:
            _lib.pf_model_close(c.byref(self._handle))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> dict[str, str | int]:
        raw = _lib.pf_model_info(self._need()).contents
        values = {name: getattr(raw, name) for name, _ in _ModelInfo._fields_}
        return {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in values.items()}

    def tokenize(self, text: str | bytes, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        flags = TOK_ADD_SPECIAL * add_special | TOK_PARSE_SPECIAL * parse_special
        handle = self._need()
        out, n = _filled(lambda buffer, cap, need: _lib.pf_tokenize(handle, data, len(data), flags, buffer, cap, need),
                         lambda n: (c.c_int32 * n)())
        return list(out[:n])

    def detokenize(self, tokens: Sequence[int], *, special: bool = False, goes_on: bool = False) -> bytes:
        """Bytes, which may begin or end inside a character; goes_on keeps the first word's leading space."""
        array = (c.c_int32 * len(tokens))(*tokens)
        flags = DETOK_SPECIAL * special | DETOK_CONTINUE * goes_on
        handle = self._need()
        out, n = _filled(lambda buffer, cap, need: _lib.pf_detokenize(handle, array, len(tokens), flags, buffer, cap, need),
                         c.create_string_buffer)
        return out.raw[:n]

    def render(self, messages: Iterable[tuple[str, str]]) -> str:
        """The prompt for (role, content) messages, by the model's own chat template."""
        raw = [_Message(role=role.encode(), content=content.encode()) for role, content in messages]
        array = (_Message * len(raw))(*raw)
        handle = self._need()
        out, n = _filled(lambda buffer, cap, need: _lib.pf_chat_render(handle, array, len(raw), None, buffer, cap, need),
                         c.create_string_buffer)
        return out.raw[:n].decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        return bool(_lib.pf_token_is_end(self._need(), token))

    def session(self, *, n_ctx: int = 0, n_batch: int = 0, kv: str = "i16") -> Session:
        return Session(self, n_ctx=n_ctx, n_batch=n_batch, kv=kv)

    def _need(self) -> c.c_void_p:
        if not self._handle:
            raise RuntimeError("the model is closed")
        return self._handle


class Sampling:
    """How tokens are picked; temp 0: always the likeliest. Same seed, same logits, same tokens."""

    def __init__(self, *, temp: float = 0.8, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, seed: int = 0) -> None:
        self._raw = _Sampler()
        _lib.pf_sampler_init(c.byref(self._raw), seed)
        self._raw.temp, self._raw.top_k, self._raw.top_p, self._raw.min_p = temp, top_k, top_p, min_p


class Session:
    """A sequence of tokens with its keys and values."""

    def __init__(self, model: Model, *, n_ctx: int = 0, n_batch: int = 0, kv: str = "i16") -> None:
        self.model = model
        self._handle = c.c_void_p()
        opts = _SessionOpts()
        _lib.pf_session_opts_init(c.byref(opts))
        opts.n_ctx, opts.n_batch, opts.kv_type = n_ctx, n_batch, KV_TYPES[kv]
        _check(_lib.pf_session_open(c.byref(self._handle), model._need(), c.byref(opts)))
        model._n_sessions += 1

    def close(self) -> None:
        if self._handle:
            _lib.pf_session_close(c.byref(self._handle))
            self.model._n_sessions -= 1

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_ctx(self) -> int:
        return int(_lib.pf_session_n_ctx(self._need()))

    def __len__(self) -> int:
        return int(_lib.pf_session_pos(self._need()))

    def sync(self, tokens: Sequence[int]) -> int:
        """Makes the sequence equal to tokens; how many of them needed no evaluation."""
        reused = c.c_size_t()
        _check(_lib.pf_session_sync(self._need(), (c.c_int32 * len(tokens))(*tokens), len(tokens), c.byref(reused)))
        return reused.value

    def eval(self, tokens: Sequence[int]) -> None:
        _check(_lib.pf_session_eval(self._need(), (c.c_int32 * len(tokens))(*tokens), len(tokens), 0))

    def rewind(self, pos: int) -> None:
        _check(_lib.pf_session_rewind(self._need(), pos))

    def logits(self) -> list[float] | None:
        raw = _lib.pf_session_logits(self._need())
        return raw[:self.model.info["n_vocab"]] if raw else None

    def sample(self, sampling: Sampling) -> int:
        token = c.c_int32()
        _check(_lib.pf_sample(c.byref(sampling._raw), self._need(), c.byref(token)))
        return token.value

    def cancel(self) -> None:
        """From any thread: the running or the next sync or eval fails with PF_ECANCEL (-4)."""
        _lib.pf_session_cancel(self._need())

    def generate(self, tokens: Sequence[int], sampling: Sampling | None = None, limit: int | None = None) -> Iterator[int]:
        """Tokens that follow, until the model ends its reply, the context is full or there are `limit`."""
        sampling = sampling or Sampling()
        self.sync(tokens)
        n = 0
        while limit is None or n < limit:
            token = self.sample(sampling)
            if self.model.is_end(token):
                return
            yield token
            n += 1
            if len(self) == self.n_ctx:
                return
            self.eval([token])

    def chat(self, messages: Iterable[tuple[str, str]], sampling: Sampling | None = None, limit: int | None = None) -> Iterator[str]:
        """The reply to (role, content) messages, in pieces of whole characters."""
        held, first = b"", True
        for token in self.generate(self.model.tokenize(self.model.render(messages), parse_special=True), sampling, limit):
            held += self.model.detokenize([token], goes_on=not first)
            first = False
            n = _lib.pf_utf8_complete(held, len(held))
            if n:
                yield held[:n].decode("utf-8", "replace")
                held = held[n:]
        if held:
            yield held.decode("utf-8", "replace")

    def _need(self) -> c.c_void_p:
        if not self._handle:
            raise RuntimeError("the session is closed")
        return self._handle
